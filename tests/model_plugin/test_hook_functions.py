"""The hooks' own logic, on stand-ins for SGLang's objects; `test_hooks` shows that they meet the real ones."""

import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import model_plugin
from model_plugin import sglang_hooks
from model_plugin.schema_layout import PromptLayout, QuestionSpans, namespace_of, pack_layout
from model_plugin.sglang_hooks import REFUSED_ARGUMENTS

GRID = 64


def layout(state_end: int = 200, tokens: int = 300, namespace: str = "") -> PromptLayout:
    question = QuestionSpans(
        question_type="noul",
        question=(state_end, state_end + 5),
        options=((state_end + 5, state_end + 6), (state_end + 6, state_end + 9)),
    )
    return PromptLayout(prompt_tokens=tokens, questions=(question,), state_end=state_end, namespace=namespace)


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, **values: Any) -> None:
    """Put these in the place of one of SGLang's modules."""
    replacement = ModuleType(module)
    vars(replacement).update(values)
    monkeypatch.setitem(sys.modules, module, replacement)


def runtime_context(monkeypatch: pytest.MonkeyPatch, *, published: bool = True, radix_cache: bool = True) -> None:
    stand_in(
        monkeypatch,
        "sglang.srt.runtime_context",
        get_context=lambda: SimpleNamespace(is_config_namespace_published=lambda name: published and name == "memory"),
        get_memory=lambda: SimpleNamespace(disable_radix_cache=not radix_cache),
        get_schedule=lambda: SimpleNamespace(max_prefill_tokens=500),
        mamba_cache_chunk_size=lambda: GRID,
        mamba_checkpoint_grid=lambda page_size: GRID * page_size,
    )


# Layouts.


@pytest.mark.parametrize(
    ("extra_key", "salt", "expected"),
    [
        (None, None, None),
        (None, "tenant", namespace_of("tenant")),
        ("lora", "tenant", f"lora{namespace_of('tenant')}"),
        ("lora", None, "lora"),
    ],
)
def test_a_layout_is_adopted_once(extra_key: str | None, salt: str | None, expected: str | None) -> None:
    sent = layout(namespace=namespace_of(salt))
    request = SimpleNamespace(
        decision_layout=pack_layout(sent), origin_input_ids=range(300), extra_key=extra_key, to_finish=None
    )
    for _ in range(2):  # a request that was retracted is queued again
        sglang_hooks.adopt_layout(None, request, is_retracted=True)
        assert request.decision_layout == sent
        assert request.extra_key == expected


def test_spans_move_with_expanded_media() -> None:
    request = SimpleNamespace(
        decision_layout=pack_layout(layout()), origin_input_ids=range(340), extra_key=None, to_finish=None
    )
    sglang_hooks.adopt_layout(None, request)
    assert request.decision_layout == layout(state_end=240, tokens=340)


def test_a_refused_request_has_no_layout() -> None:
    """SGLang has cut its prompt to one token; an error here would end the scheduler."""
    request = SimpleNamespace(
        decision_layout=pack_layout(layout()), origin_input_ids=[0], extra_key=None, to_finish="aborted"
    )
    sglang_hooks.adopt_layout(None, request)
    assert request.decision_layout is None


def test_a_request_without_a_layout_is_left_alone() -> None:
    request = SimpleNamespace(decision_layout=None, extra_key="key")
    sglang_hooks.adopt_layout(None, request)
    assert (request.decision_layout, request.extra_key) == (None, "key")


@pytest.mark.parametrize(("longest", "expected"), [(299, 200), (200, 200), (120, 120)])
def test_no_prefix_reaches_past_the_state(longest: int, expected: int) -> None:
    asks, does_not_ask = SimpleNamespace(decision_layout=layout()), SimpleNamespace(decision_layout=None)
    assert sglang_hooks.cap_prefix_at_state(longest, asks, 300) == expected
    assert sglang_hooks.cap_prefix_at_state(longest, does_not_ask, 300) == longest


class Item(SimpleNamespace):
    """Stands for SGLang's media item: its own hash is of the features alone."""

    def __init__(self, kind: str, features: int, **values: Any) -> None:
        super().__init__(
            modality=SimpleNamespace(name=kind),
            pad_value=None,
            hash=None,
            features=features,
            model_specific_data=values,
            identity=None,
        )

    def set_hash(self) -> None:
        self.hash = self.pad_value = self.features

    def set_identity(self, identity: bytes) -> None:
        self.identity, self.pad_value = identity, identity[0]


def identity(item: Item) -> bytes | None:
    sglang_hooks.identify_media(Item.set_hash, item)
    known: bytes | None = item.identity
    return known


class TestMediaIdentity:
    """`identify_media`."""

    def test_the_front_s_digest_is_taken_and_taken_off(self) -> None:
        item = Item("IMAGE", 7, image_grid_thw=torch.tensor([[1, 4, 2]]), **{model_plugin.MEDIA_DIGESTS: [b"d" * 32]})
        assert identity(item) == b"d" * 32
        assert item.hash is None
        assert list(item.model_specific_data) == ["image_grid_thw"]

    def test_more_than_one_digest_for_an_item_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="too many values"):
            identity(Item("IMAGE", 7, **{model_plugin.MEDIA_DIGESTS: [b"d" * 32, b"e" * 32]}))

    def test_equal_features_are_told_apart_by_grid_and_kind(self) -> None:
        wide, high = torch.tensor([[1, 2, 4]]), torch.tensor([[1, 4, 2]])
        known = [
            identity(Item("IMAGE", 7, image_grid_thw=wide)),
            identity(Item("IMAGE", 7, image_grid_thw=high)),
            identity(Item("IMAGE", 8, image_grid_thw=wide)),
            identity(Item("VIDEO", 7, video_grid_thw=wide)),
        ]
        assert len(set(known)) == 4
        assert {len(one) for one in known if one is not None} == {32}
        assert identity(Item("IMAGE", 7, image_grid_thw=wide.clone())) == known[0]

    def test_what_has_no_grid_is_known_as_sglang_knows_it(self) -> None:
        item = Item("AUDIO", 7)
        assert identity(item) is None
        assert item.hash == 7

    def test_what_is_known_already_stays(self) -> None:
        item = Item("IMAGE", 7, **{model_plugin.MEDIA_DIGESTS: [b"d" * 32]})
        item.pad_value = 5
        assert identity(item) is None
        assert item.pad_value == 5


class TestValidation:
    """`validate_clef_request`."""

    @staticmethod
    def validate(packed: list[int] | None, tokens: int, clef: bool = True) -> int:
        """How often SGLang's own validation was asked."""
        asked: list[int] = []
        manager = SimpleNamespace(
            model_config=SimpleNamespace(joint_head_config={"width": 4} if clef else None),
            context_len=1000,
            num_reserved_tokens=4,
            max_req_input_len=990,
        )
        sglang_hooks.validate_clef_request(
            lambda *arguments: asked.append(len(arguments)),
            manager,
            SimpleNamespace(decision_layout=packed),
            [0] * tokens,
        )
        return len(asked)

    @pytest.mark.parametrize(("radix_cache", "limit"), [(True, 989), (False, 500)])
    def test_the_limit(self, radix_cache: bool, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime_context(monkeypatch, radix_cache=radix_cache)
        assert self.validate(pack_layout(layout(tokens=limit)), limit) == 0
        with pytest.raises(ValueError, match=f"the prompt has {limit + 1} tokens, this server takes at most {limit}"):
            self.validate(pack_layout(layout(tokens=limit + 1)), limit + 1)

    def test_a_layout_that_does_not_fit_the_prompt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime_context(monkeypatch)
        with pytest.raises(ValueError, match="the layout describes 300 tokens, the prompt has 299"):
            self.validate(pack_layout(layout()), 299)
        with pytest.raises(ValueError, match="cut short"):
            self.validate(pack_layout(layout())[:5], 300)

    def test_what_is_not_ours_is_left_to_sglang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime_context(monkeypatch)
        assert self.validate(None, 5000) == 1
        assert self.validate(pack_layout(layout()), 5000, clef=False) == 1


# Checkpoints of the recurrent state.

Entry = namedtuple("Entry", ["track_mask", "track_position", "track_seqlen"])


@pytest.mark.parametrize(
    ("prefix", "end", "state_end", "branch"),
    [
        pytest.param(0, 300, 200, 192, id="the whole prompt"),
        pytest.param(128, 300, 200, 192, id="the branch lies inside the last chunk"),
        pytest.param(0, 192, 200, 192, id="the chunk ends at the branch"),
        pytest.param(0, 300, 192, 192, id="the state ends on the grid"),
        pytest.param(0, 191, 200, "SGLang's", id="the branch lies after the chunk"),
        pytest.param(64, 128, 200, "SGLang's", id="a chunk in the middle of the state"),
        pytest.param(192, 300, 200, None, id="the state was cached up to the branch"),
        pytest.param(256, 300, 200, None, id="the chunk starts after the branch"),
        pytest.param(0, 300, 63, None, id="a state shorter than the grid"),
    ],
)
def test_the_state_is_kept_at_the_branch(
    prefix: int, end: int, state_end: int, branch: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime_context(monkeypatch)
    stand_in(monkeypatch, "sglang.srt.managers.schedule_batch", _MambaRadixCacheV2TrackEntry=Entry)
    request = SimpleNamespace(
        decision_layout=layout(state_end),
        prefix_len=prefix,
        extend_end=end,
        mamba_branching_seqlen=None,
        kv=SimpleNamespace(mamba_next_track_idx=7),
    )
    batch = SimpleNamespace(tree_cache=SimpleNamespace(page_size=1))
    entry = sglang_hooks.checkpoint_at_state(lambda *_: "SGLang's", batch, request)
    if branch is None:
        assert entry == Entry(track_mask=False, track_position=7, track_seqlen=-1)
    else:
        assert entry == "SGLang's"
    assert request.mamba_branching_seqlen == (branch if isinstance(branch, int) else None)


def test_other_requests_are_tracked_as_sglang_does() -> None:
    assert sglang_hooks.checkpoint_at_state(lambda *_: "SGLang's", None, SimpleNamespace(decision_layout=None)) == (
        "SGLang's"
    )


@pytest.mark.parametrize(
    ("published", "radix_cache", "clef", "grid", "expected"),
    [
        pytest.param(True, True, True, 1, 64, id="Clef"),
        pytest.param(True, True, True, 128, 128, id="SGLang's is coarser"),
        pytest.param(True, True, False, 1, 1, id="another model"),
        pytest.param(True, False, True, 1, 1, id="no radix cache"),
        pytest.param(False, True, True, 1, 1, id="no configuration yet"),
    ],
)
def test_prompts_are_cut_on_the_grid(
    published: bool, radix_cache: bool, clef: bool, grid: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime_context(monkeypatch, published=published, radix_cache=radix_cache)
    monkeypatch.setattr(sglang_hooks, "served_head_config", lambda: {"width": 4} if clef else None)
    assert sglang_hooks.chunk_grid(grid) == expected
    arguments = ("policy", "chunked", ["waiting"], 512)
    assert sglang_hooks.chunk_limit_on_grid(*arguments, page_size=1) == (
        (*arguments, 64 if clef and radix_cache and published else 1),
        {},
    )
    assert sglang_hooks.chunk_limit_on_grid(*arguments, page_size=256)[0][-1] == 256


# Memory rows.


@pytest.mark.parametrize(
    ("clef", "radix_cache", "dtype", "expected"),
    [
        (True, True, torch.bfloat16, 1000 + 2 * 24),
        (True, True, torch.float32, 1000 + 4 * 24),
        (False, True, torch.bfloat16, 1000),
        (True, False, torch.bfloat16, 1000),
    ],
)
def test_memory_rows_are_counted(
    clef: bool, radix_cache: bool, dtype: torch.dtype, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime_context(monkeypatch, radix_cache=radix_cache)
    config = SimpleNamespace(joint_head_config={"width": 24} if clef else None, dtype=dtype)
    assert sglang_hooks.count_memory_rows(1000, None, SimpleNamespace(model_config=config), 8) == expected


@pytest.mark.parametrize(("clef", "radix_cache"), [(True, True), (False, True), (True, False)])
def test_every_slot_gets_a_row(clef: bool, radix_cache: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_context(monkeypatch, radix_cache=radix_cache)
    given: list[Any] = []
    runner = SimpleNamespace(
        model_config=SimpleNamespace(joint_head_config={"width": 24} if clef else None),
        token_to_kv_pool=SimpleNamespace(size=100, page_size=4),
        req_to_token_pool=SimpleNamespace(req_to_token="the slot table"),
        model=SimpleNamespace(
            memory_row_dtype=torch.bfloat16, pooler=SimpleNamespace(use_pools=lambda *pools: given.extend(pools))
        ),
        device="cpu",
    )
    sglang_hooks.allocate_memory_rows(None, runner, memory_pool_config=None)
    if not (clef and radix_cache):
        assert given == []
        return
    rows, table = given
    assert table == "the slot table"
    assert rows.size_bytes == 104 * 24 * 2
    rows.write(torch.tensor([103]), torch.ones(1, 24))  # the last slot SGLang may hand out


def test_cached_tokens_reach_whoever_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reply(SimpleNamespace):
        """Stands for BatchEmbeddingOutput."""

    stand_in(monkeypatch, "sglang.srt.managers.io_struct", BatchEmbeddingOutput=Reply)
    monkeypatch.setattr(model_plugin, "cached_tokens", {"asked": 0, "asked too": 0})
    sglang_hooks.report_cached_tokens(None, Reply(rids=["asked", "nobody"], cached_tokens=[64, 128]))
    sglang_hooks.report_cached_tokens(None, SimpleNamespace(rids=["asked too"], cached_tokens=[64]))
    assert model_plugin.cached_tokens == {"asked": 64, "asked too": 0}


# Arguments.


def arguments(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{name: fine for name, (fine, _) in REFUSED_ARGUMENTS.items()} | {"tp_size": 1} | changes)


def heads(**changes: int) -> SimpleNamespace:
    """A checkpoint with Clef-Flash's numbers of heads."""
    counts = {
        "num_key_value_heads": 4,
        "num_attention_heads": 16,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    }
    return SimpleNamespace(hf_text_config=SimpleNamespace(**counts | changes))


@pytest.mark.parametrize("name", REFUSED_ARGUMENTS)
def test_an_argument_is_refused_by_its_flag(name: str) -> None:
    fine, reason = REFUSED_ARGUMENTS[name]
    value = 2 if isinstance(fine, int) and not isinstance(fine, bool) else True if fine is False else "something"
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} {value}: ") as refused:
        sglang_hooks.refuse_wrong_arguments(arguments(**{name: value}), heads())
    assert str(refused.value).endswith(reason)


@pytest.mark.parametrize("name", REFUSED_ARGUMENTS)
def test_an_argument_that_is_not_set_is_fine(name: str) -> None:
    sglang_hooks.refuse_wrong_arguments(arguments(**{name: None}), heads())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_that_share_heads_evenly_are_fine(ranks: int) -> None:
    sglang_hooks.refuse_wrong_arguments(arguments(tp_size=ranks), heads())


@pytest.mark.parametrize(
    ("ranks", "counts", "what"),
    [
        (8, {}, "4 key-value heads"),
        (3, {}, "4 key-value heads"),
        (2, {"num_attention_heads": 15}, "15 attention heads"),
        (4, {"linear_num_key_heads": 2}, "2 linear key heads"),
        (4, {"linear_num_value_heads": 6}, "6 linear value heads"),
    ],
)
def test_ranks_that_do_not_are_refused(ranks: int, counts: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=f"--tp-size {ranks}: this one has {what}, which {ranks} ranks cannot share"):
        sglang_hooks.refuse_wrong_arguments(arguments(tp_size=ranks), heads(**counts))
