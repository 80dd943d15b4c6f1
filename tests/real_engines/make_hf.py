"""Writes a tiny Llama with random weights in Hugging Face's form, for vLLM: `make_hf.py FOLDER`.

The tokenizer is byte-level BPE, trained on the spot on a few sentences. Nothing is downloaded.
"""

import sys
from pathlib import Path

import tokenizers
import torch
import transformers

SPECIAL = ["<unk>", "<s>", "</s>"]
SENTENCES = [
    "Whoever has received least goes next, and whoever cannot run yet waits in a queue that is bounded.",
    "A refusal says when to come back. The engine is busy and its own queue is short.",
    "one two three four five six seven eight nine ten",
]
CHAT = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def tokenizer():
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=448, special_tokens=SPECIAL, initial_alphabet=alphabet)
    bpe.train_from_iterator(SENTENCES, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>", eos_token="</s>", model_max_length=4096)
    fast.chat_template = CHAT
    return fast


def write(folder):
    torch.manual_seed(7)
    words = tokenizer()
    words.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=448, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=False)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
write(sys.argv[1])
