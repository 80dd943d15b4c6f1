# `just` lists these; each is one line you could type yourself.

# Everything the quick gate runs: format, lints, tests, docs, licences, README.
test:
    tests/run

# The quick gate and the long runs: 10,000 random worlds, fuzzing, published numbers, the long load test.
full:
    tests/run --full

# Format and lint as the gate will.
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings

# A gateway over a simulated engine, nothing else needed.
demo:
    cargo run --release -- serve --demo

# One hog and three light tenants, vtc against fcfs, through a real gateway.
compare *ARGS:
    loadtest/compare.sh {{ARGS}}

# Known vulnerabilities in what we depend on (needs a network).
advisories:
    cargo deny check advisories
