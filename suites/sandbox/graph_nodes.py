"""Count the kernels of a CUDA graph, in whatever language they are written."""

from __future__ import annotations

import ctypes

_library = ctypes.CDLL  # bound before a candidate is imported, which may replace it
_KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL


def kernel_nodes(graph: int) -> int:
    """Return the number of kernel nodes of a graph, by CUDA's driver.

    Args:
        graph: the graph's handle, from `torch.cuda.CUDAGraph.raw_cuda_graph`.
    """
    driver, handle, count = _library("libcuda.so.1"), ctypes.c_void_p(graph), ctypes.c_size_t()
    driver.cuGraphGetNodes(handle, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count))
    kernels = 0
    for node in nodes:
        kind = ctypes.c_int(-1)
        driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        kernels += kind.value == _KERNEL_NODE
    return kernels
