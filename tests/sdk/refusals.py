"""Every refusal of the table as the official SDKs take it: its class, our code, and whether and when they come back.

Run by tests/it/sdk.rs with the address of a server that answers from the gateway's own table.
"""

import sys

import anthropic
import openai

from common import check_table

URL = sys.argv[1]
MESSAGES = [{"role": "user", "content": "hello"}]

OPENAI = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    413: "APIStatusError",
    429: "RateLimitError",
    500: "InternalServerError",
    502: "InternalServerError",
    503: "InternalServerError",
    504: "InternalServerError",
}
ANTHROPIC = {
    **OPENAI,
    413: "ContentTooLargeError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
    529: "OverloadedError",
}

if __name__ == "__main__":
    for name, call in [
        ("chat", lambda client, asked: client.chat.completions.create(model=asked, messages=MESSAGES)),
        ("completions", lambda client, asked: client.completions.create(model=asked, prompt="hello")),
        ("responses", lambda client, asked: client.responses.create(model=asked, input="hello")),
        ("embeddings", lambda client, asked: client.embeddings.create(model=asked, input="hello")),
    ]:
        print("openai", openai.__version__, name)
        check_table(
            lambda retries: openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=retries),
            call,
            openai.APIStatusError,
            OPENAI,
            lambda error: error.code,
            lambda error: error.request_id,
        )
    print("anthropic", anthropic.__version__, "messages")
    check_table(
        lambda retries: anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=retries),
        lambda client, asked: client.messages.create(model=asked, max_tokens=5, messages=MESSAGES),
        anthropic.APIStatusError,
        ANTHROPIC,
        lambda error: error.body["error"]["code"],
        lambda error: error.request_id,
    )
