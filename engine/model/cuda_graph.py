"""A call that is recorded as a CUDA graph: the one seam of the step that is special to CUDA. Inference thread.

A graph repeats the same operators at the same addresses without Python and without launching them one by one: whoever
records keeps the tensors alive and where they are, and changes what is in them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

_log = logging.getLogger(__name__)


class GraphRecorder:
    """Makes graphs for one device; on the CPU, and after recording failed once, the calls stay what they are."""

    def __init__(self, device: torch.device) -> None:
        self.can_record = device.type == "cuda"
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    def capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """`function` as a graph, or None. It is called to warm up, so calling it twice has to equal calling it once."""
        if not self.can_record:
            return None
        try:
            return self._capture(function)
        except torch.OutOfMemoryError:
            return None  # for now: without a graph less memory is needed
        except RuntimeError as error:
            self.can_record = False
            _log.warning("no CUDA graph could be recorded; replies are slower (%s)", error)
            return None

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Warm up and record on one side stream: what libraries allocate once per stream is not part of the graph."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream = self._stream
        current = torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):  # around the other one, which does not leave the stream when it fails
                function()
                # Other threads (the saver's copies) go on: only this one has to keep to what can be recorded.
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    function()
        finally:
            current.wait_stream(stream)
        return graph


class GraphedCall:
    """`function` without arguments and result, replayed as a graph where there can be one."""

    def __init__(self, function: Callable[[], None], recorder: GraphRecorder) -> None:
        self._function = function
        self._graph = recorder.capture(function)

    @property
    def is_graph(self) -> bool:
        return self._graph is not None

    def run(self) -> None:
        """Call it, on the current stream; the caller waits for the device."""
        if self._graph is None:
            self._function()
        else:
            self._graph.replay()
