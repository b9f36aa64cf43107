"""What the tests of clef-mini share: its trainer at the smallest sizes that have every part."""

import functools
from typing import Any

from launch.mini.shape import CONTEXT_TOKENS, backbone_config
from launch.mini.tokenizer import learn_tokenizer
from launch.mini.train import Recipe, Trainer, tokenizer_texts
from model_plugin.checkpoint import HeadConfig

MICRO_HEAD = HeadConfig(hidden_size=32, width=32, routing_layers=1, layers=1, heads=2, feedforward=32)
MICRO_RECIPE = Recipe(steps=10, batch_tokens=1024, warmup_steps=2)


@functools.cache
def micro_tokenizer() -> Any:
    """512 rows, learned from 50 records."""
    return learn_tokenizer(tokenizer_texts(50), vocabulary_size=512, context_tokens=CONTEXT_TOKENS)


def micro_trainer(recipe: Recipe = MICRO_RECIPE) -> Trainer:
    """A fresh training; the same on every call."""
    config = backbone_config(
        micro_tokenizer(),
        vocab_size=512,
        hidden_size=32,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    )
    return Trainer(recipe, micro_tokenizer(), config.text_config, MICRO_HEAD)
