"""Sampling against transformers' own filters, as an independent statement of what each one means."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.generation.sampler import Sampler
from engine.protocol.config import GREEDY, Sampling
from engine.protocol.errors import GenerationError

CPU = torch.device("cpu")


def expected_support(sampling: Sampling, logits: torch.Tensor, history: list[int]) -> torch.Tensor:
    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chain.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        chain.append(MinPLogitsWarper(sampling.min_p))
    return chain(torch.tensor([history]), logits[None].clone())[0].softmax(-1)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_p=1.0),
        Sampling(temperature=0.5, top_p=1.0),
        Sampling(temperature=1.0, top_p=1.0, top_k=5),
        Sampling(temperature=1.0, top_p=0.6),
        Sampling(temperature=3.0, top_p=0.99),
        Sampling(temperature=1.0, top_p=0.8, top_k=20),
        Sampling(temperature=1.0, top_p=1.0, min_p=0.2),
        Sampling(temperature=1.0, top_p=1.0, repetition_penalty=1.5),
        Sampling(temperature=0.9, top_p=0.9, top_k=30, min_p=0.05, repetition_penalty=1.1),
    ],
)
def test_draws_follow_the_filtered_distribution(sampling: Sampling) -> None:
    torch.manual_seed(3)
    logits = torch.randn(300) * 2
    history = [5, 6, 7, 8, int(logits.argmax())]
    probabilities = expected_support(sampling, logits, history)
    sampler = Sampler(sampling, history, CPU)
    counts = torch.zeros(300)
    draws = 4000
    generator = torch.Generator().manual_seed(1)
    sampler._generator = generator
    for _ in range(draws):
        counts[sampler._draw(_penalized(sampler, logits))] += 1
    assert counts[probabilities == 0].sum() == 0
    spread = (probabilities * (1 - probabilities) / draws).sqrt()
    assert ((counts / draws - probabilities).abs() <= 5 * spread + 1e-3).all()


def _penalized(sampler: Sampler, logits: torch.Tensor) -> torch.Tensor:
    copy = logits.clone()
    if sampler._seen:
        sampler._penalize(copy)
    return copy


def test_greedy_takes_the_best_and_a_seed_repeats() -> None:
    logits = torch.randn(50)
    assert Sampler(GREEDY, [], CPU).sample(logits.clone()) == int(logits.argmax())
    sampling = Sampling(temperature=1.5, top_p=1.0, seed=4)
    runs = []
    for _ in range(2):
        sampler = Sampler(sampling, [], CPU)
        runs.append([sampler.sample(logits.clone()) for _ in range(20)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_numbers_that_are_none_are_refused(bad: float, sampling: Sampling) -> None:
    logits = torch.zeros(10)
    logits[4] = bad
    with pytest.raises(GenerationError):
        Sampler(sampling, [], CPU).sample(logits)


def test_a_token_counts_as_seen_once_it_was_drawn() -> None:
    sampler = Sampler(Sampling(temperature=0.0, top_p=1.0, repetition_penalty=2.0), [3], CPU)
    logits = torch.tensor([-1.0, 3.0, 2.0, 3.5, -0.5])
    assert [sampler.sample(logits.clone()) for _ in range(4)] == [1, 2, 3, 3]
