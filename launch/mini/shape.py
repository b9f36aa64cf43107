"""The sizes of clef-mini, and the configuration that says them. Knows nothing of weights."""

from typing import TYPE_CHECKING, Any

from model_plugin.checkpoint import HeadConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3_5Config

CONTEXT_TOKENS = 65_536  # as Cloudflare documents for Clef
VOCABULARY_SIZE = 6144
HEAD = HeadConfig(hidden_size=128, width=128, routing_layers=2, layers=2, heads=4, feedforward=256)


def backbone_config(tokenizer: "PreTrainedTokenizerBase", **changes: Any) -> "Qwen3_5Config":
    """Qwen3.5 at a thirtieth of Clef-Flash's width: two pairs of a Gated DeltaNet layer and one of full attention.

    Args:
        changes: of `text_config`, by name.
    """
    from transformers import Qwen3_5Config

    token = tokenizer.convert_tokens_to_ids
    text = {
        "hidden_size": HEAD.hidden_size,
        "intermediate_size": 320,
        "num_hidden_layers": 4,
        "full_attention_interval": 2,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "vocab_size": VOCABULARY_SIZE,
        "max_position_embeddings": CONTEXT_TOKENS,
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            # Time, height, width: half of the 16 rotary dimensions of a head of 64.
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        **changes,
    }
    vision = {
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": text["hidden_size"],
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
    }
    return Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=False,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
