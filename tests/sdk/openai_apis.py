"""The official OpenAI SDK on completions, responses and embeddings, through a gateway over the simulated engine, unchanged.

Run by tests/it/sdk.rs with the gateway's base URL. Prints what it saw; fails on the first thing that is not as it
should be.
"""

import sys

import openai

CLIENT = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)


def completions():
    whole = CLIENT.completions.create(model="demo", prompt="Say hello", max_tokens=5)
    assert whole.choices[0].text and whole.usage.completion_tokens <= 5, whole
    chunks = list(CLIENT.completions.create(model="demo", prompt="Say hello", max_tokens=5, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks), "usage nobody asked for stays hidden"
    assert chunks[-1].choices[0].finish_reason in ("length", "stop"), chunks[-1]
    asked = {"include_usage": True}
    chunks = list(
        CLIENT.completions.create(model="demo", prompt="Say hello", max_tokens=5, stream=True, stream_options=asked)
    )
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 2, chunks[-1]
    print("completions:", whole.choices[0].text, "|", "".join(chunk.choices[0].text for chunk in chunks[:-1]))


def responses():
    whole = CLIENT.responses.create(model="demo", input="Say hello", max_output_tokens=16)
    assert whole.output_text and whole.usage.output_tokens <= 16, whole
    events = list(CLIENT.responses.create(model="demo", input="Say hello", max_output_tokens=16, stream=True))
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete"), last
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == last.response.output_text and last.response.usage.output_tokens, last
    with CLIENT.responses.stream(model="demo", input="Say hello", max_output_tokens=4000) as stream:
        assert stream.get_final_response().output_text
    print("responses:", whole.output_text, "|", text)


def embeddings():
    answer = CLIENT.embeddings.create(model="demo", input=["hello", "world"])
    assert len(answer.data) == 2 and len(answer.data[0].embedding) == 8, answer
    assert answer.usage.prompt_tokens == 2 == answer.usage.total_tokens, answer.usage
    print("embeddings:", answer.data[0].embedding[:3])


def refused():
    for call in [
        lambda: CLIENT.responses.create(model="demo", input="x", background=True),
        lambda: CLIENT.audio.transcriptions.create(model="demo", file=("a.wav", b"x")),
    ]:
        try:
            call()
            raise AssertionError("not supported")
        except openai.BadRequestError as error:
            assert error.code == "tallygate_unsupported", error
            print("refused:", error.message)
    try:
        CLIENT.embeddings.create(model="nobody-has-it", input="x")
        raise AssertionError("no such model")
    except openai.NotFoundError as error:
        assert error.code == "tallygate_model_not_found", error


if __name__ == "__main__":
    print("openai", openai.__version__)
    for check in [completions, responses, embeddings, refused]:
        check()
