//! Lists of operations on the core, with time passing between them: the invariants hold after every one.
//!
//! The list is drawn from bytes, so the fuzzer can shorten and splice it. Two cores get the same list and must say
//! the same; a third party (`books`) follows every effect and knows nothing but the rules.

#![no_main]

mod books;
mod ops;

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tallygate::admission::{Engine, Input, Options, Slots};
use tallygate::units::{Instant, Span};

use books::Books;
use ops::{Op, World};

fuzz_target!(|world: World| {
    let policy = Arc::new(world.policy());
    let options = Options { seed: world.seed.into(), slots: Slots::Window, ..Options::default() };
    let (mut engine, mut twin) = (Engine::new(Arc::clone(&policy), options), Engine::new(Arc::clone(&policy), options));
    let mut books = Books::new(Arc::clone(&policy));
    let mut now = Instant::EPOCH;
    for op in world.ops.iter().take(ops::MOST) {
        if let Op::Pass { millis } = op {
            now = now + Span::from_millis((*millis).into());
        }
        let input = op.input(now, &mut books);
        step(&mut engine, &mut twin, &mut books, now, input);
    }
    // Then everything ends: nothing more is let in, what waits is refused, what runs is lost or settled.
    for input in [Input::Drain, Input::Flush] {
        step(&mut engine, &mut twin, &mut books, now, input);
    }
    for input in books.endings() {
        step(&mut engine, &mut twin, &mut books, now, input);
    }
    books.assert_closed(&engine);
});

fn step(engine: &mut Engine, twin: &mut Engine, books: &mut Books, now: Instant, input: Input) {
    books.before(&input);
    let effects = engine.on(now, input.clone());
    assert_eq!(effects, twin.on(now, input), "equal inputs, equal decisions");
    books.after(now, &effects);
    books.judge(now, engine);
}
