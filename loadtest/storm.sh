#!/usr/bin/env bash
# A retry storm of the official SDKs for Python, through a real gateway over the simulated engine.
#
#   loadtest/storm.sh [--clients N] [--think S] [--seconds S] [--warm-up S]
#
# TALLYGATE_PYTHON is a Python with the packages of tests/python/requirements.txt; `tests/run` makes one.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet -p tallygate -p tallygate-loadtest
engine=127.0.0.1:18000 proxy=127.0.0.1:18080
started=()
stop() { for process in "${started[@]}"; do kill "$process" 2>/dev/null || true; done; wait; }
trap stop EXIT
target/release/tallygate-loadtest engine --addr "$engine" > /dev/null & started+=($!)
target/release/tallygate serve --policy loadtest/policies/overload.yaml --upstream "http://$engine" --proxy "$proxy" \
    --grpc 127.0.0.1:18001 --admin 127.0.0.1:18090 > /dev/null 2>&1 & started+=($!)
until curl --silent --fail --output /dev/null http://127.0.0.1:18090/readyz; do sleep 0.1; done
"${TALLYGATE_PYTHON:-python3}" loadtest/storm_sdk.py "http://$proxy" "$@"
