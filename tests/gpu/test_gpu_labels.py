"""Labels of candidates on a real GPU, and the referee of an untrusted task. Run as ``test_gpu_worker`` is."""

from __future__ import annotations

import pytest

from gpu.test_gpu_worker import KERNEL, LANGUAGES, LIMITS, SMALL, forward
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import Kernels
from stark_worker.protocol.request import Entry, EvalRequest, Target
from worker_fixture import running_worker


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache", Target.CUDA) as worker:

        def judged(source: str, target: Target, **more):
            report = worker.judge(EvalRequest(SMALL, source, target=target, limits=LIMITS, **more))
            assert report.outcome is Outcome.OK, report.log
            assert worker.left() == (set(), set())
            return report

        yield judged


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_kernel_of_ones_own(judge, language):
    labels = judge(KERNEL[language], language, with_labels=True, opponent_source=SMALL).labels
    assert labels.kernels is Kernels.CUSTOM
    assert labels.own_share > 0.9
    assert labels.precision == "fp32"
    assert [trial.outcome for trial in labels.other_shapes] == ["right"] * 3


def test_a_library_call(judge):
    labels = judge(SMALL, Target.CUDA, entry=Entry.REFERENCE, with_labels=True).labels
    assert (labels.kernels, labels.own_share) == (Kernels.LIBRARY, 0.0)


def test_memory_that_is_passed_through(judge):
    source = forward("torch.ones(2**24, device=x.device); return self.right(x)", Target.TRITON)
    labels = judge(source, Target.TRITON, with_labels=True).labels
    assert 63 < labels.extra_memory_mb < 80


def test_one_that_is_right_for_one_shape_alone(judge):
    source = forward("assert x.shape[0] == 16; return self.right(x)", Target.TRITON)
    labels = judge(source, Target.TRITON, with_labels=True).labels
    assert [trial.outcome for trial in labels.other_shapes] == ["runtime error"] * 3


def test_the_referee_of_an_untrusted_task_works_confined(judge):
    report = judge(KERNEL[Target.TRITON], Target.TRITON, untrusted_task=True, opponent_source=SMALL)
    assert "Landlock" in report.reference_isolation.details
    assert "seccomp" in report.reference_isolation.details
