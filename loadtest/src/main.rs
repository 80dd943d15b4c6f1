//! The load generator: offers a scenario to a gateway, open-loop, and reports what each tenant got.

fn main() {}
