"""Refusals of a real gateway as the official SDKs take them: their class, our code, the id of the decision.

Run by tests/it/sdk.rs with the gateway's address and the name of what it was set up to refuse.
"""

import sys

import anthropic
import openai

URL, PHASE = sys.argv[1:3]
MESSAGES = [{"role": "user", "content": "hello"}]
LONG = [{"role": "user", "content": "hello " * 600}]
HUGE = [{"role": "user", "content": "x" * 8000}]


def of_openai(key="sk-acme"):
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)


def of_anthropic(key="sk-acme"):
    return anthropic.Anthropic(base_url=URL, api_key=key, max_retries=0)


def chat(client, messages=MESSAGES, model="demo", **more):
    return client.chat.completions.create(model=model, messages=messages, **{"max_tokens": 5, **more})


def message(client, messages=MESSAGES, model="demo", **more):
    return client.messages.create(model=model, messages=messages, **{"max_tokens": 5, **more})


def refused(call, kind, status, code):
    """The call raises this class, with this status and our code. Returns the error."""
    try:
        call()
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        body = error.body if isinstance(error, openai.APIStatusError) else error.body["error"]
        where = f"{error!r} {error.response.headers}"
        assert type(error).__name__ == kind, where
        assert (error.status_code, body["code"]) == (status, f"tallygate_{code}"), where
        assert error.request_id == error.response.headers["x-tallygate-decision"], where
        assert error.response.headers["x-tallygate-reason"] == code, where
        print(f"{PHASE:12} {code:22} {type(error).__module__.split('.')[0]:10} {kind}")
        return error
    raise AssertionError(f"it should have been refused with {code}")


def both(openai_kind, anthropic_kind, status, code, *, key="sk-acme", **more):
    """The same through both SDKs, streamed and not."""
    for stream in [False, True]:
        refused(lambda: chat(of_openai(key), stream=stream, **more), openai_kind, status, code)
        refused(lambda: message(of_anthropic(key), stream=stream, **more), anthropic_kind, status, code)


def limits():
    both("AuthenticationError", "AuthenticationError", 401, "unidentified", key="sk-wrong")
    both("NotFoundError", "NotFoundError", 404, "model_not_found", model="other")
    both("APIStatusError", "ContentTooLargeError", 413, "too_large", messages=LONG)
    both("APIStatusError", "ContentTooLargeError", 413, "too_large", messages=HUGE)
    refused(lambda: chat(of_openai(), n=0), "BadRequestError", 400, "malformed")
    refused(lambda: message(of_anthropic(), max_tokens=-1), "BadRequestError", 400, "malformed")
    client = of_openai()
    for call, code in [
        (lambda: client.responses.create(model="demo", input="x", background=True), "unsupported"),
        (lambda: client.audio.transcriptions.create(model="demo", file=("a.wav", b"x")), "unsupported"),
        (lambda: client.completions.create(model="demo", prompt="x", n=0), "malformed"),
    ]:
        refused(call, "BadRequestError", 400, code)
    for call in [
        lambda: client.responses.create(model="other", input="x"),
        lambda: client.embeddings.create(model="other", input="x"),
        lambda: client.completions.create(model="other", prompt="x"),
    ]:
        refused(call, "NotFoundError", 404, "model_not_found")
    waits("expired", extra_headers={"x-tallygate-deadline-ms": "50"})


def waits(code, **more):
    """While another request runs, there is no room: the refusal tells a wait."""
    running = chat(of_openai(), stream=True, max_tokens=300, extra_body={"ignore_eos": True})
    next(iter(running))
    for client, call in [(of_openai(), chat), (of_anthropic(), message)]:
        for stream in [False, True]:
            error = refused(lambda: call(client, stream=stream, **more), "RateLimitError", 429, code)
            told = error.response.headers
            assert int(told["retry-after-ms"]) > 0 and int(told["retry-after"]) >= 1, told
    running.close()


PHASES = {
    "limits": limits,
    "full": lambda: waits("queue_full"),
    "draining": lambda: both("InternalServerError", "ServiceUnavailableError", 503, "draining"),
    "broken": lambda: both("InternalServerError", "InternalServerError", 500, "internal"),
    "unreachable": lambda: both("InternalServerError", "InternalServerError", 502, "upstream_unreachable"),
    "silent": lambda: both("InternalServerError", "GatewayTimeoutError", 504, "upstream_timed_out"),
}

if __name__ == "__main__":
    print("openai", openai.__version__, "anthropic", anthropic.__version__)
    PHASES[PHASE]()
