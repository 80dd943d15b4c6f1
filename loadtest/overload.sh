#!/usr/bin/env bash
# Several times what the engine can do, through a real gateway, straight to the engine, and through a real Envoy with a
# rate of requests and with adaptive concurrency; and the gateway's part judged.
#
#   loadtest/overload.sh [--envoy PROGRAM] [--at-once] [--times 1.5,3,10] [--out DIR] [SCENARIO.yaml]
#
# `tallygate-loadtest overload --help` tells the rest. TALLYGATE_ENVOY says where Envoy is; `tests/run` installs it.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet -p tallygate -p tallygate-loadtest
options=()
case " $* " in *" --envoy "*) ;; *) options+=(--envoy "${TALLYGATE_ENVOY:-envoy}") ;; esac
case " $* " in *" --out "*) ;; *) options+=(--out out/overload) ;; esac
exec target/release/tallygate-loadtest overload "${options[@]}" "$@"
