"""Writes a small chat model with random weights that vLLM can serve; the same arguments give the same bytes.

usage: tiny_model.py DIR TOKENIZER
TOKENIZER is a folder with `tokenizer.json` and `tokenizer_config.json` of a real model; its chat template is used too.
"""
import json
import pathlib
import shutil
import sys

import numpy
from safetensors.numpy import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 64, 2, 2, 1, 32
LONGEST = 8192


def numbers(tokenizer):
    """How many numbers of tokens there are, and the number of each added token."""
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    return max([*tokenizer["model"]["vocab"].values(), *added.values()]) + 1, added


def main(to, source):
    to.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, to / name)
    vocabulary, added = numbers(json.loads((source / "tokenizer.json").read_text()))
    end = added[json.loads((source / "tokenizer_config.json").read_text())["eos_token"]]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": LONGEST,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "dtype": "float16",
        "eos_token_id": end,
    }
    (to / "config.json").write_text(json.dumps(config, indent=1))

    random = numpy.random.default_rng(7)

    def weights(*shape):
        return (0.08 * random.standard_normal(shape, numpy.float32)).astype(numpy.float16)

    ones = numpy.ones(HIDDEN, numpy.float16)
    tensors = {"model.embed_tokens.weight": weights(vocabulary, HIDDEN), "model.norm.weight": ones}
    for layer in range(LAYERS):
        of = f"model.layers.{layer}."
        tensors |= {
            of + "input_layernorm.weight": ones,
            of + "self_attn.q_proj.weight": weights(HEADS * HEAD_SIZE, HIDDEN),
            of + "self_attn.k_proj.weight": weights(KV_HEADS * HEAD_SIZE, HIDDEN),
            of + "self_attn.v_proj.weight": weights(KV_HEADS * HEAD_SIZE, HIDDEN),
            of + "self_attn.o_proj.weight": weights(HIDDEN, HEADS * HEAD_SIZE),
            of + "post_attention_layernorm.weight": ones,
            of + "mlp.gate_proj.weight": weights(2 * HIDDEN, HIDDEN),
            of + "mlp.up_proj.weight": weights(2 * HIDDEN, HIDDEN),
            of + "mlp.down_proj.weight": weights(HIDDEN, 2 * HIDDEN),
        }
    save_file(tensors, to / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
