//! Hostile bodies and answers of every dialect: a call or an error that says what; what is forwarded is still the
//! same request.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tallygate::costing::{Calibration, Encoding, InputCounter};
use tallygate::units::{Model, TenantId, Tokens};
use tallygate::wire::dialect::{AnswerForm, Dialect};

const MODEL: &str = "another \"model\"";

fuzz_target!(|data: &[u8]| {
    for dialect in Dialect::ALL {
        one(dialect, dialect.path(), data);
    }
    one(Dialect::Gemini, "/v1beta/models/m:generateContent", data);
});

fn one(dialect: Dialect, path: &str, data: &[u8]) {
    let _reply = AnswerForm::new(dialect, false).read(data, Encoding::O200k);
    let body = Bytes::copy_from_slice(data);
    let parsed = match dialect.parse(path, &body) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "refused without saying why");
            return;
        }
    };
    assert_eq!(parsed.call.bytes.get(), data.len() as u64);
    let counted = InputCounter::of(&parsed.call.model).count(&parsed.call.prompt);
    let (tenant, model) = (TenantId::from("t"), Model::from(parsed.call.model.as_str()));
    let mut calibration = Calibration::default();
    let most = counted.total().get().saturating_mul(3).saturating_add(2);
    for reported in [0, 7, counted.total().get().saturating_mul(2), u64::MAX] {
        let expected = calibration.expect(&tenant, &model, &counted);
        assert!(expected.get() <= most, "{expected} for {counted:?}");
        calibration.learn(&tenant, &model, &counted, expected, Tokens::new(reported));
    }
    let same = parsed.forward(&body, &parsed.call.model);
    let renamed = parsed.forward(&body, MODEL);
    // What a door does not read it does not judge: a number too large for this parser passes to the upstream.
    let Ok(mut before) = serde_json::from_slice::<Value>(&body) else { return };
    let mut after: Value = serde_json::from_slice(&renamed).expect("what is forwarded is JSON");
    if dialect == Dialect::Gemini {
        assert_eq!(before, after, "its model stands in the path");
        return;
    }
    assert_eq!(after["model"], MODEL);
    assert!(serde_json::from_slice::<Value>(&same).is_ok(), "what is forwarded is JSON");
    // Apart from the model and the usage asked for, nothing changed.
    for value in [&mut before, &mut after] {
        let object = value.as_object_mut().expect("a request is an object");
        object.remove("model");
        object.remove("stream_options");
    }
    assert_eq!(before, after);
}
