"""What the SDK scripts share: a refusal for every row of the table, and how a client behaves when it gets one.

A row is (what to ask for, status, our code, whether the SDK comes back, how long it waits first). What is asked for is the
model's name; tests/it/sdk.rs answers it from the gateway's own table.
"""

import time

OWN_BACKOFF = object()

ROWS = [
    # what to ask for, status, code, attempts, wait before the second attempt in seconds
    ("queue_full 1", 429, "queue_full", 2, 1),
    ("queue_full 60", 429, "queue_full", 2, 60),
    ("queue_full 61", 429, "queue_full", 1, None),
    ("queue_full 86400", 429, "queue_full", 1, None),
    ("rate_limited 2", 429, "rate_limited", 2, 2),
    ("budget_spent 2", 429, "budget_spent", 2, 2),
    ("wait_too_long 2", 429, "wait_too_long", 2, 2),
    ("expired 2", 429, "expired", 2, 2),
    ("retry_budget 10", 429, "retry_budget", 2, 10),
    ("breaker_tripped 20", 503, "breaker_tripped", 2, 20),
    ("breaker_tripped 86400", 503, "breaker_tripped", 1, None),
    ("draining 3", 503, "draining", 2, 3),
    ("draining 300", 503, "draining", 1, None),
    ("too_large 0", 413, "too_large", 1, None),
    ("body_too_large 0", 413, "too_large", 1, None),
    ("unidentified 0", 401, "unidentified", 1, None),
    ("malformed 0", 400, "malformed", 1, None),
    ("unsupported 0", 400, "unsupported", 1, None),
    ("class_not_granted 0", 403, "class_not_granted", 1, None),
    ("model_not_found 0", 404, "model_not_found", 1, None),
    ("upstream_unreachable 0", 502, "upstream_unreachable", 2, OWN_BACKOFF),
    ("upstream_timed_out 0", 504, "upstream_timed_out", 2, OWN_BACKOFF),
    ("internal 0", 500, "internal", 2, OWN_BACKOFF),
]


def behaviour(client, call, failure):
    """Makes a call that is refused, and returns the exception, the attempts and the waits. A wait of up to a second
    is really slept and measured; a longer one is only noted."""
    attempts, waits, real_sleep = [], [], time.sleep

    def sleep(seconds):
        began = time.monotonic()
        real_sleep(min(seconds, 1))
        waits.append(seconds)
        assert time.monotonic() - began >= min(seconds, 1)

    client._client.event_hooks["response"].append(lambda response: attempts.append(response.status_code))
    time.sleep = sleep
    try:
        call(client)
        raise AssertionError("it should have been refused")
    except failure as error:
        return error, attempts, waits
    finally:
        time.sleep = real_sleep


def check_table(make_client, call, failure, classes, code_of, id_of):
    """Every row: the right class, our code, the id of the decision, and the wait that was told."""
    for asked, status, code, expected_attempts, expected_wait in ROWS:
        # Anthropic's API has a status of its own for it.
        status = 529 if code == "breaker_tripped" and 529 in classes else status
        client = make_client(1)
        error, attempts, waits = behaviour(client, lambda client: call(client, asked), failure)
        where = f"{asked}: {error!r}"
        assert type(error).__name__ == classes[status], where
        assert error.status_code == status, where
        assert code_of(error) == f"tallygate_{code}", where
        assert "-" in id_of(error), where
        assert attempts == [status] * expected_attempts, (where, attempts)
        assert len(waits) == expected_attempts - 1, (where, waits)
        if expected_wait is OWN_BACKOFF:
            assert 0 < waits[0] <= 8, (where, waits)
        elif expected_wait is not None:
            # Told in milliseconds, rounded up.
            assert expected_wait <= waits[0] < expected_wait + 0.002, (where, waits)
        print(f"{asked:24} {type(error).__name__:26} {len(attempts)} attempts, waits {waits}")
