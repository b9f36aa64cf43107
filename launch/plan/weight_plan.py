"""What the weights of a release occupy on each tensor-parallel rank, by group. Knows which tensors SGLang splits and how.

Source: SGLang 0.5.23, models/qwen3_5.py and models/qwen3_vl.py (which linear layers are column- or row-parallel),
layers/vocab_parallel_embedding.py (padding); our models/clef.py (the joint head is replicated).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from launch.plan.tensors import Tensor

# By the tensor's own layer, the last part of its name before `.weight` or `.bias`.
_COLUMN_PARALLEL = (
    *("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    *("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "conv1d", "A_log", "dt_bias"),
    *("qkv", "linear_fc1"),
)
_ROW_PARALLEL = ("o_proj", "out_proj", "down_proj", "proj", "linear_fc2")
_VOCABULARY_PARALLEL = ("embed_tokens", "lm_head", "pos_embed")
# DEFAULT_VOCAB_PADDING_SIZE of layers/vocab_parallel_embedding.py.
_VOCABULARY_PADDING = 64
GROUPS = ("text", "embeddings", "lm_head", "vision", "head")


@dataclass(frozen=True, kw_only=True)
class WeightPlan:
    """Bytes on one rank. `unloaded_bytes` are in the files and stay there.

    Attributes:
        by_group: bytes by the names of GROUPS.
        replicated_bytes: the part of them that every rank holds in full, where there are several.
    """

    by_group: dict[str, int]
    replicated_bytes: int
    unloaded_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.by_group.values())


def plan_weights(tensors: Sequence[Tensor], *, tp: int, text_only: bool, element_bytes: int = 2) -> WeightPlan:
    """Bytes of each group on one rank.

    Args:
        tp: tensor-parallel ranks; must divide the model's heads.
        text_only: the vision tower is not loaded.
        element_bytes: of the engine's type, to which unquantized weights are converted.
    """
    by_group = dict.fromkeys(GROUPS, 0)
    replicated = unloaded = 0
    for tensor in tensors:
        group = _group(tensor.name)
        if group is None or (group == "vision" and text_only):
            unloaded += tensor.stored_bytes
            continue
        whole = _loaded_bytes(tensor, element_bytes)
        share = _share(tensor, whole, group, tp)
        by_group[group] += share
        replicated += share if tp > 1 and share == whole else 0
    return WeightPlan(by_group=by_group, replicated_bytes=replicated, unloaded_bytes=unloaded)


def _group(name: str) -> str | None:
    """The group of a tensor; None for what SGLang does not load, the multi-token-prediction layers."""
    if "mtp" in name:
        return None
    if "visual." in name:
        return "vision"
    if name.startswith("lm_head."):
        return "lm_head"
    if "embed_tokens." in name:
        return "embeddings"
    return "text" if name.startswith("model.") else "head"


def _loaded_bytes(tensor: Tensor, element_bytes: int) -> int:
    if tensor.name.endswith(".A_log"):
        return tensor.elements * 4  # FP32 in any engine
    if tensor.is_weight and tensor.format == "bf16":
        return tensor.elements * element_bytes
    return tensor.stored_bytes  # quantized weights, their scales and zero points


def _share(tensor: Tensor, whole: int, group: str, tp: int) -> int:
    """Bytes on one rank of a tensor that takes `whole` bytes undivided."""
    if group == "head" or (tp == 1 and not _is_vocabulary(tensor)):
        return whole
    if _is_vocabulary(tensor):
        rows = tensor.shape[0]
        return whole // rows * (_padded(rows, tp) // tp)
    layer = _layer(tensor.name)
    if layer in _COLUMN_PARALLEL:
        return whole // tp if tensor.elements > 1 else whole
    if layer in _ROW_PARALLEL and not tensor.name.endswith(".bias"):
        # Split along its inputs, of which a scale an output channel has one and a scale a tensor none.
        return whole // tp if len(tensor.shape) > 1 and min(tensor.shape) > 1 else whole
    return whole


def _layer(name: str) -> str:
    parts = name.split(".")
    if "patch_embed" in parts:
        return "patch_embed"
    return parts[-1] if parts[-1] in _COLUMN_PARALLEL else parts[-2]


def _is_vocabulary(tensor: Tensor) -> bool:
    return _layer(tensor.name) in _VOCABULARY_PARALLEL


def _padded(rows: int, tp: int) -> int:
    """Source: VocabParallelEmbedding.__init__."""
    padding = _VOCABULARY_PADDING
    if -(-rows // padding) * padding % tp:
        padding *= tp
    return -(-rows // padding) * padding
