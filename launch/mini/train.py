"""Trains clef-mini from nothing, on the CPU, reproducibly, and goes on where it was ended.

What is learned from is `generate`'s stream of records, each seen once. Every process computes a share of each batch with
one thread, which at these sizes is much faster than one process with as many threads. Knows nothing of serving.
"""

import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from launch.mini import generate
from launch.mini.batches import Example, RecordEncoder, pool_batches
from launch.mini.initial import initialise
from launch.mini.losses import decision_loss, padded
from launch.mini.network import ClefNetwork
from launch.mini.shape import CONTEXT_TOKENS, HEAD, VOCABULARY_SIZE, backbone_config
from launch.mini.tokenizer import learn_tokenizer
from model_plugin.checkpoint import HeadConfig
from model_plugin.schema_layout import QUESTION_TYPES
from serving.api_types import parse_request
from serving.prompt_text import (
    FIELD_END,
    OPTION_STARTS,
    OPTIONS_START,
    PREFIX,
    SCHEMA_START,
    SUFFIX,
    question_texts,
    render,
)

STATE_FILE = "training.pt"
CURVE_FILE = "learning_curve.jsonl"
_TOKENIZER_RECORDS = 8000
_COUNTED_RECORDS = 500


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How long and how fast to learn. `batch_tokens` counts padded tokens."""

    steps: int
    batch_tokens: int = 4096
    learning_rate: float = 1e-3
    warmup_steps: int = 60
    embedding_speed: float = 8.0  # times the learning rate: a token's row is of size 1, and moves only where it occurs
    declining: float = 0.4  # the share of the steps before the last ones over which the learning rate falls to nothing
    last_steps: int = 500  # at most; over these, on what is learned last, it falls once more
    last_learning_rate: float = 0.5  # times the highest
    weight_decay: float = 0.05
    max_gradient_norm: float = 1.0
    seed: int = 1

    @property
    def last_from(self) -> int:
        """The first of the last steps."""
        return self.steps - min(self.last_steps, self.steps // 12)

    @property
    def decline_from(self) -> int:
        """The last step of the full learning rate."""
        return self.last_from - max(1, int(self.last_from * self.declining))


def tokenizer_texts(records: int) -> Iterator[str]:
    """The pieces that prompts are made of, which are tokenized one by one."""
    for number in range(records):
        request = parse_request({key: generate.record("validation", number)[key] for key in ("state", "questions")})
        yield from (PREFIX, SUFFIX, SCHEMA_START, render(request.state))
        for index, (name, question) in enumerate(request.questions.items(), start=1):
            texts = question_texts(index, name, name, question)
            yield from (*texts, OPTIONS_START, FIELD_END, *OPTION_STARTS[: len(texts.options)])


def mini_tokenizer() -> Any:
    """clef-mini's tokenizer, learned from what its training reads."""
    return learn_tokenizer(
        tokenizer_texts(_TOKENIZER_RECORDS), vocabulary_size=VOCABULARY_SIZE, context_tokens=CONTEXT_TOKENS
    )


class Trainer:
    """One training: a network, its optimizer, and how far it is.

    Args:
        tokenizer: the release's.
        text_config: the backbone's sizes.
    """

    def __init__(self, recipe: Recipe, tokenizer: Any, text_config: Any, head: HeadConfig) -> None:
        self.recipe, self.tokenizer, self.head = recipe, tokenizer, head
        self.encoder = RecordEncoder(tokenizer, CONTEXT_TOKENS)
        self.network = ClefNetwork(text_config, head)
        rows = [tokenizer.decode([row]) for row in range(len(tokenizer))]
        rows += [""] * (text_config.vocab_size - len(rows))
        initialise(self.network, rows, self._commonness(text_config.vocab_size), recipe.seed)
        self.optimizer = torch.optim.AdamW(
            _groups(self.network, recipe), lr=recipe.learning_rate, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        # Every parameter's gradient is a part of one tensor, which the processes add up in one go.
        self._gradient = torch.zeros(sum(parameter.numel() for parameter in self.network.parameters()))
        start = 0
        for parameter in self.network.parameters():
            parameter.grad = self._gradient[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self._rank, self._processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.step = 0
        self.pool, self.batch = 0, 0
        self._batches: list[list[Example]] = []

    def _commonness(self, vocabulary: int) -> Tensor:
        """The share of prompts that hold each token, of the first records after the drill that training begins with."""
        records = generate.records("validation", _COUNTED_RECORDS)
        held = [set(self.encoder.encode(record).prompt.input_ids) for record in records]
        counts = torch.bincount(torch.tensor([token for ids in held for token in sorted(ids)]), minlength=vocabulary)
        return counts / len(held)

    def advance(self) -> dict[str, float]:
        """One step of the optimizer; what all processes measured on their shares of the batch before."""
        examples = self._next_batch()
        scale = self._learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * group["speed"] * scale
        self._gradient.zero_()
        measured = self._learn_from(examples[self._rank :: self._processes], sum(len(one.labels) for one in examples))
        if self._processes > 1:
            dist.all_reduce(self._gradient)
            dist.all_reduce(measured)
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.max_gradient_norm)
        self.optimizer.step()
        self.step += 1
        loss, *counts = measured.tolist()
        asked, right = counts[: len(QUESTION_TYPES)], counts[len(QUESTION_TYPES) :]
        return {
            "loss": loss,
            "gradient_norm": float(norm),
            "tokens": float(sum(len(example.prompt.input_ids) for example in examples)),
            **{kind: ok / of for kind, of, ok in zip(QUESTION_TYPES, asked, right, strict=True) if of},
        }

    def _learn_from(self, examples: list[Example], questions: int) -> Tensor:
        """Add the gradient of a share of a batch that asks so many questions.

        Returns:
            The share's part of the loss; of each question type the number asked; and of each the number answered rightly.
        """
        measured = torch.zeros(1 + 2 * len(QUESTION_TYPES), dtype=torch.float64)
        if examples:
            logits = self.network([example.prompt for example in examples])
            logits_QN = padded([values for of_prompt in logits for values in of_prompt])
            labels_Q = torch.tensor([label for example in examples for label in example.labels])
            loss = decision_loss(logits_QN, labels_Q) * (len(labels_Q) / questions)
            loss.backward()
            measured[0] = loss.detach()
            kinds_Q = torch.tensor([QUESTION_TYPES.index(kind) for example in examples for kind in example.types])
            right_Q = (logits_QN.detach().argmax(-1) == labels_Q).double()
            measured[1 : 1 + len(QUESTION_TYPES)].index_add_(0, kinds_Q, torch.ones_like(right_Q))
            measured[1 + len(QUESTION_TYPES) :].index_add_(0, kinds_Q, right_Q)
        return measured

    def _next_batch(self) -> list[Example]:
        if not self._batches:
            self._batches = pool_batches(self.encoder, self.pool, self.recipe.batch_tokens)
        examples = self._batches[self.batch]
        self.batch += 1
        if self.batch == len(self._batches):
            self.pool, self.batch, self._batches = self.pool + 1, 0, []
        return examples

    def _learning_rate(self) -> float:
        """The share of the highest learning rate: up in a line, then level, then down in a line, and lower down once more.

        Until the decline it does not depend on how many steps there will be, so a longer training can go on from there.
        """
        recipe = self.recipe
        if self.step >= recipe.last_from:
            return recipe.last_learning_rate * (recipe.steps - self.step) / max(1, recipe.steps - recipe.last_from)
        rising = (self.step + 1) / recipe.warmup_steps
        falling = (recipe.last_from - self.step) / (recipe.last_from - recipe.decline_from)
        return min(1.0, rising, falling)

    def save(self, path: Path) -> None:
        """Write all that the next step depends on, whole or not at all."""
        partial = path.with_suffix(".partial")
        torch.save(
            {
                "recipe": asdict(self.recipe),
                "network": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "place": (self.step, self.pool, self.batch),
            },
            partial,
        )
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote.

        More or fewer steps may be asked for than then, as long as the learning rate has not begun to fall in either case.

        Raises:
            ValueError: it was another recipe's.
        """
        state = torch.load(path, weights_only=True)
        step, _, _ = state["place"]
        then, now = Recipe(**state["recipe"]), self.recipe
        level = step <= min(then.decline_from, now.decline_from)
        if replace(then, steps=now.steps) != now or (then.steps != now.steps and not level):
            raise ValueError(f"{path} is of another recipe, {then}, at step {step}; name another output, or delete it")
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.pool, self.batch = state["place"]


def _groups(network: ClefNetwork, recipe: Recipe) -> list[dict[str, Any]]:
    """Matrices shrink, vectors and embeddings do not; embeddings and single numbers move faster, as they must."""
    decayed, embeddings, kept, numbers = [], [], [], []
    for name, parameter in network.named_parameters():
        if parameter.ndim == 0:
            numbers.append(parameter)
        elif "embed_tokens" in name or "lm_head" in name:
            embeddings.append(parameter)
        elif parameter.ndim < 2 or "conv1d" in name:
            kept.append(parameter)
        else:
            decayed.append(parameter)
    return [
        {"params": decayed, "weight_decay": recipe.weight_decay, "speed": 1.0},
        {"params": embeddings, "weight_decay": 0.0, "speed": recipe.embedding_speed},
        {"params": kept, "weight_decay": 0.0, "speed": 1.0},
        {"params": numbers, "weight_decay": 0.0, "speed": 5.0},
    ]


def mini_trainer(recipe: Recipe) -> Trainer:
    """clef-mini's, at its first step."""
    tokenizer = mini_tokenizer()
    return Trainer(recipe, tokenizer, backbone_config(tokenizer).text_config, HEAD)


def train(
    directory: Path,
    recipe: Recipe,
    new_trainer: Callable[[Recipe], Trainer] = mini_trainer,
    *,
    processes: int = 1,
    save_every: int = 100,
    say: Callable[[str], None] = print,
) -> Trainer:
    """Train to the last step, or on to it from where an earlier call was ended.

    Args:
        directory: holds the state of training and the learning curve.
        new_trainer: a module's function, which every process calls.
        processes: share each batch. Their number changes sums in the last digits, and so the weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _followers(processes - 1, directory, recipe, new_trainer):
        trainer = _started(directory, recipe, new_trainer)
        with _one_core():
            _lead(trainer, directory, save_every, say)
    return trainer


@contextlib.contextmanager
def _followers(count: int, *what: Any) -> Iterator[None]:
    """So many more processes that train the same; they end with this one."""
    if count == 0:
        yield
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as meeting:
        store = f"file://{meeting}/store"
        followers = [
            spawning.Process(target=_follow, args=(rank, count + 1, store, *what), daemon=True)
            for rank in range(1, count + 1)
        ]
        for follower in followers:
            follower.start()
        _join(store, 0, count + 1)
        try:
            yield
        finally:
            dist.destroy_process_group()
            for follower in followers:
                follower.join()  # past its last step, or without anyone to add gradients with, it ends


def _follow(rank: int, processes: int, store: str, directory: Path, recipe: Recipe, new_trainer: Any) -> None:
    _join(store, rank, processes)
    trainer = _started(directory, recipe, new_trainer)
    with _one_core():
        while trainer.step < recipe.steps:
            trainer.advance()
    dist.destroy_process_group()


def _join(store: str, rank: int, processes: int) -> None:
    """Meet the other processes; one that has ended is waited for no longer than that, here and at each step."""
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=processes, timeout=timedelta(minutes=3))


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Compute with one thread, and take numbers too small to be normal for zeros: they made a step half as long again."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def _started(directory: Path, recipe: Recipe, new_trainer: Callable[[Recipe], Trainer]) -> Trainer:
    trainer = new_trainer(recipe)
    state = directory / STATE_FILE
    if state.is_file():
        trainer.load(state)
    return trainer


def _lead(trainer: Trainer, directory: Path, save_every: int, say: Callable[[str], None]) -> None:
    """What `train` does in its own process."""
    recipe = trainer.recipe
    state, curve = directory / STATE_FILE, directory / CURVE_FILE
    if trainer.step:
        say(f"going on after step {trainer.step}")
        kept = [line for line in curve.read_text().splitlines() if json.loads(line)["step"] <= trainer.step]
        curve.write_text("".join(f"{line}\n" for line in kept))
    else:
        curve.write_text("")
    recent: deque[dict[str, float]] = deque(maxlen=50)
    began, tokens, first = time.monotonic(), 0.0, trainer.step
    while trainer.step < recipe.steps:
        measured = trainer.advance()
        recent.append(measured)
        tokens += measured["tokens"]
        if trainer.step % 50 == 0 or trainer.step == recipe.steps:
            mean = {key: _mean(recent, key) for key in ("loss", *QUESTION_TYPES, "gradient_norm")}
            with curve.open("a") as file:
                file.write(json.dumps({"step": trainer.step, **mean}) + "\n")
            seconds = time.monotonic() - began
            left = seconds / (trainer.step - first) * (recipe.steps - trainer.step)
            say(
                f"step {trainer.step}/{recipe.steps}  loss {mean['loss']:.3f}  right: noul {mean['noul']:.3f}, choice "
                f"{mean['choice']:.3f}, score {mean['score']:.3f}  {tokens / seconds:.0f} tokens/s  {left / 60:.0f} min left"
            )
        if trainer.step % save_every == 0 or trainer.step == recipe.steps:
            trainer.save(state)


def _mean(recent: "deque[dict[str, float]]", key: str) -> float:
    found = [one[key] for one in recent if key in one]
    return round(sum(found) / len(found), 4) if found else float("nan")
