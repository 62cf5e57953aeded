"""Make a tiny Llama with random weights and a byte-level tokenizer. Runs in vLLM's own environment: ``python make_model.py
FOLDER``.

Random weights are saved, instead of letting vLLM invent dummy ones, so that both replicas serve the same model and their greedy
answers can be compared. The model is small enough to load in seconds and large enough that a prefill in small chunks takes time.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 7
VOCABULARY = 512
END, PADDING = "<|end|>", "<|padding|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
CORPUS = [
    "the quick brown fox jumps over the lazy dog while the model reads a very long prompt",
    "one lease and one clock: an attempt that can not publish any more has been fenced",
]


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END, PADDING], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS * 50, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, chat_template=CHAT_TEMPLATE, model_max_length=32_768
    )


def main(folder: Path) -> None:
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32_768,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        # Wide enough for distinct answers: at the usual 0.02 a random model repeats one token.
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
