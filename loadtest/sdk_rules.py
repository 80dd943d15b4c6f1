"""Asks the official SDKs whether and when they would send a refused request again.

    sdk_rules.py '[{"status": 429, "headers": {"retry-after": "3"}, "attempt": 0, "retries": 2}, ...]'

Prints one list of waits in seconds for each SDK (OpenAI's, then Anthropic's); null where it gives up.
"""

import json
import sys

import anthropic
import httpx2 as httpx
import openai

CLIENTS = [openai.OpenAI(api_key="none", base_url="http://127.0.0.1:1/v1"),
           anthropic.Anthropic(api_key="none", base_url="http://127.0.0.1:1")]
# The module whose request options each client understands.
MODELS = [openai._models, anthropic._models]


def wait(client, models, question):
    attempt, retries = question["attempt"], question["retries"]
    response = httpx.Response(question["status"], headers=question["headers"])
    if attempt >= retries or not client._should_retry(response):
        return None
    options = models.FinalRequestOptions.construct(method="post", url="/", max_retries=retries)
    return client._calculate_retry_timeout(retries - attempt, options, response.headers)


questions = json.loads(sys.argv[1])
print(json.dumps([[wait(client, models, question) for question in questions]
                  for client, models in zip(CLIENTS, MODELS)]))
