//! The Rust code of our own gRPC API is what its `.proto` gives, and so is what reflection tells of it.

use prost::Message as _;

use super::{at, expect_file};

const PROTO: &str = "tallygate/v1/admission.proto";

#[test]
fn the_code_of_the_admission_api_is_current() {
    let described = protox::compile([PROTO], [at("proto")]).unwrap_or_else(|error| panic!("{error:?}"));
    let descriptor = described.encode_to_vec();
    let folder = tempfile::tempdir().expect("a folder for a test");
    tonic_prost_build::configure()
        .out_dir(folder.path())
        .emit_rerun_if_changed(false)
        .compile_fds(described)
        .expect("code can be made of it");
    let code = std::fs::read_to_string(folder.path().join("tallygate.v1.rs")).expect("it was made");
    assert!(code.starts_with("// This file is @generated"), "tidy knows it by that");
    expect_file(&at("proto/rust/tallygate.v1.rs"), &code);
    let path = at("proto/rust/tallygate.v1.bin");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&path, &descriptor).expect("the file can be written");
    }
    let found = std::fs::read(&path).unwrap_or_default();
    assert!(found == descriptor, "{} is stale; rewrite it with UPDATE_GENERATED=1", path.display());
}
