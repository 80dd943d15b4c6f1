"""The official OpenAI SDK through a gateway over the simulated engine, unchanged.

Run by tests/it/sdk.rs with the gateway's base URL. The gateway lets one request through at a time, and none waits.
Prints what it saw; fails on the first thing that is not as it should be.
"""

import sys
import time

import openai

BASE_URL = sys.argv[1]
MESSAGES = [{"role": "user", "content": "Say hello"}]


def client(max_retries):
    return openai.OpenAI(base_url=BASE_URL, api_key="unused", max_retries=max_retries)


def long_stream():
    """A stream that holds the only slot until it is closed. Its first chunk has arrived."""
    stream = client(0).chat.completions.create(
        model="demo", messages=MESSAGES, stream=True, max_tokens=4000, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    return stream


def answer_in_one_piece():
    raw = client(0).chat.completions.with_raw_response.create(model="demo", messages=MESSAGES, max_tokens=5)
    completion = raw.parse()
    assert completion.choices[0].message.content, completion
    assert completion.usage.completion_tokens == 5, completion.usage
    assert raw.headers["x-tallygate-decision"] and raw.headers["x-tallygate-queue-ms"] == "0", raw.headers
    print("not streamed:", completion.choices[0].message.content)


def answer_as_a_stream():
    stream = client(0).chat.completions.create(model="demo", messages=MESSAGES, max_tokens=5, stream=True)
    chunks = list(stream)
    assert all(chunk.choices for chunk in chunks), "the usage chunk that nobody asked for stays hidden"
    assert all(chunk.usage is None for chunk in chunks), chunks
    assert chunks[-1].choices[0].finish_reason == "length", chunks[-1]
    print("streamed:", "".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    stream = client(0).chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    last = list(stream)[-1]
    assert last.choices == [] and last.usage.completion_tokens == 5, last
    print("usage, asked for:", last.usage.total_tokens, "tokens")


def refusal_is_understood():
    stream = long_stream()
    try:
        client(0).chat.completions.create(model="demo", messages=MESSAGES)
        raise AssertionError("there is no room")
    except openai.RateLimitError as error:
        assert error.code == "tallygate_queue_full", error.code
        assert error.type == "rate_limit_error" and error.request_id, error
        assert "try again in" in error.message, error.message
        print("refused:", error.code, "-", error.message)
    finally:
        stream.close()


def sdk_waits_as_told():
    stream = long_stream()
    slept, told, real_sleep = [], [], time.sleep

    def sleep(seconds):
        stream.close()  # so that the next attempt finds room
        began = time.monotonic()
        real_sleep(seconds)
        slept.append((seconds, time.monotonic() - began))

    patient = client(1)
    patient._client.event_hooks["response"].append(
        lambda response: told.append((response.status_code, response.headers.get("retry-after-ms")))
    )
    time.sleep = sleep
    try:
        completion = patient.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=5)
    finally:
        time.sleep = real_sleep
    assert completion.choices[0].message.content
    assert [status for status, _ in told] == [429, 200], told
    wait = int(told[0][1]) / 1000
    assert len(slept) == 1 and abs(slept[0][0] - wait) < 0.001 and slept[0][1] >= wait, (slept, wait)
    print(f"told to wait {wait:.3f} s, slept {slept[0][1]:.3f} s, then was let in")


def other_refusals_have_their_class():
    for wanted, kind, code in [
        ({"model": "nobody-has-it"}, openai.NotFoundError, "tallygate_model_not_found"),
        ({"model": "demo", "n": 0}, openai.BadRequestError, "tallygate_malformed"),
    ]:
        try:
            client(0).chat.completions.create(messages=MESSAGES, **wanted)
            raise AssertionError(wanted)
        except kind as error:
            assert error.code == code, error
            print("refused:", type(error).__name__, error.code)


if __name__ == "__main__":
    print("openai", openai.__version__)
    for check in [
        answer_in_one_piece,
        answer_as_a_stream,
        refusal_is_understood,
        sdk_waits_as_told,
        other_refusals_have_their_class,
    ]:
        check()
    print("models:", [model.id for model in client(0).models.list().data])
