#!/usr/bin/env bash
# A hog and light tenants through a real gateway, under vtc and then under fcfs, and the difference judged.
#
#   loadtest/compare.sh [--out DIR] [--engine FILE.yaml] [--seed N] [--through proxy|envoy] [--envoy PROGRAM]
#                       [--envoy-config FILE.yaml] [--picker target/release/examples/picker] [SCENARIO.yaml]
#
# Builds both programs, starts the simulated engine and the gateway on free loopback ports, and stops them again.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet -p tallygate -p tallygate-loadtest
# A configuration with an endpoint picker behind needs one.
case " $* " in *" --picker "*) cargo build --release --quiet -p tallygate --example picker ;; esac
case " $* " in
    *" --out "*) exec target/release/tallygate-loadtest compare "$@" ;;
    *) exec target/release/tallygate-loadtest compare --out out/compare "$@" ;;
esac
