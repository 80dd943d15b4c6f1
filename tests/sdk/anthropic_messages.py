"""The official Anthropic SDK through a gateway over the simulated engine, unchanged.

Run by tests/it/sdk.rs with the gateway's address. Prints what it saw; fails on the first thing that is not as it
should be.
"""

import sys

import anthropic

CLIENT = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0)
ASK = {"model": "demo", "messages": [{"role": "user", "content": "Say hello"}]}


def messages():
    raw = CLIENT.messages.with_raw_response.create(max_tokens=16, system="Be brief", **ASK)
    whole = raw.parse()
    assert whole.content[0].text and whole.usage.output_tokens <= 16, whole
    assert raw.headers["x-tallygate-decision"], raw.headers
    print("not streamed:", whole.content[0].text)


def streams():
    events = list(CLIENT.messages.create(max_tokens=16, stream=True, **ASK))
    assert events[0].type == "message_start" and events[-1].type == "message_stop", events
    with CLIENT.messages.stream(max_tokens=16, **ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text and final.usage.output_tokens <= 16, final
    assert final.stop_reason in ("end_turn", "max_tokens"), final
    print("streamed:", text)


def refused():
    for wanted, kind, code in [
        ({"model": "nobody-has-it", "max_tokens": 5}, anthropic.NotFoundError, "tallygate_model_not_found"),
        ({"max_tokens": -1}, anthropic.BadRequestError, "tallygate_malformed"),
    ]:
        try:
            CLIENT.messages.create(**{**ASK, **wanted})
            raise AssertionError(wanted)
        except kind as error:
            assert error.body["error"]["code"] == code, error.body
            assert error.request_id == error.body["request_id"], error
            print("refused:", type(error).__name__, error.body["error"]["type"], error.body["error"]["message"])


if __name__ == "__main__":
    print("anthropic", anthropic.__version__)
    for check in [messages, streams, refused]:
        check()
