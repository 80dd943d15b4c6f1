"""Writes a tiny llama model with random weights for llama.cpp's server: `make_gguf.py OUT.gguf`.

Its vocabulary is the 256 bytes and the lower-case letters, so every text has a token for every character. Nothing it
says makes sense; how many tokens it says, how fast and when it stops is as real as with any other model.
"""

import sys

import gguf
import numpy

# Large enough to take a few milliseconds a token, so that requests can be seen to wait and to run.
LAYERS, WIDTH, HEADS, CONTEXT = 8, 384, 4, 8192
CHAT = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
KIND = gguf.TokenType


def vocabulary():
    """(text, kind, score) of every token, padded to a multiple of 32."""
    tokens = [("<unk>", KIND.UNKNOWN, 0.0), ("<s>", KIND.CONTROL, 0.0), ("</s>", KIND.CONTROL, 0.0)]
    tokens += [(f"<0x{byte:02X}>", KIND.BYTE, 0.0) for byte in range(256)]
    letters = "\u2581abcdefghijklmnopqrstuvwxyz"
    tokens += [(letter, KIND.NORMAL, -1.0 - place) for place, letter in enumerate(letters)]
    while len(tokens) % 32:
        tokens.append((f"<unused{len(tokens)}>", KIND.UNUSED, -1000.0))
    return tokens


def write(path):
    random = numpy.random.default_rng(7)
    tokens = vocabulary()
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tiny")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(2 * WIDTH)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(tokens))
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list([text for text, _, _ in tokens])
    out.add_token_types([int(kind) for _, kind, _ in tokens])
    out.add_token_scores([score for _, _, score in tokens])
    out.add_unk_token_id(0)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_add_bos_token(True)
    out.add_chat_template(CHAT)

    def some(*shape):
        return (random.standard_normal(shape) * 0.05).astype(numpy.float32)

    ones = numpy.ones(WIDTH, numpy.float32)
    out.add_tensor("token_embd.weight", some(len(tokens), WIDTH))
    out.add_tensor("output_norm.weight", ones)
    out.add_tensor("output.weight", some(len(tokens), WIDTH))
    for layer in range(LAYERS):
        shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, WIDTH), "attn_v": (WIDTH, WIDTH),
                  "attn_output": (WIDTH, WIDTH), "ffn_gate": (2 * WIDTH, WIDTH), "ffn_up": (2 * WIDTH, WIDTH),
                  "ffn_down": (WIDTH, 2 * WIDTH)}
        for name, shape in shapes.items():
            out.add_tensor(f"blk.{layer}.{name}.weight", some(*shape))
        for name in ("attn_norm", "ffn_norm"):
            out.add_tensor(f"blk.{layer}.{name}.weight", ones)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


write(sys.argv[1])
