"""One reading of the names of operators and kernels: what real traces hold, and that all who ask agree."""

import numpy as np
import pytest

from tests.shared_data import shared_path
from windtunnel.comm.instances import OPERATIONS, operation_mask
from windtunnel.graph import GraphBuilder, Kind, ResourceKind
from windtunnel.graph.collectives import all_reduces, find_scattered_gradients
from windtunnel.graph.kernel_classes import CLASSES, MATRIX_CLASSES, class_of, collective_of, does_matrix_work
from windtunnel.sources.kineto import load_kineto
from windtunnel.whatifs.amp import amp
from windtunnel.whatifs.insert_tasks import products_by_type
from windtunnel.whatifs.product_speed import names_16_bits
from windtunnel.whatifs.tf32 import tf32

# what traces of NVIDIA V100, A100, H100 and H200 and AMD MI300 call them, with the operator that launched them
KERNELS = (
    ("volta_sgemm_128x64_nn", "aten::addmm", "product"),
    ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_bias_TNT", "aten::addmm", "product"),
    ("Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0", "aten::miopen_convolution", "product"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass::Params)", "", "product"),
    ("void gemmk1_kernel<float, 256, 5, false, cublasGemvTensorStridedBatched<float const> >(x)", "", "product"),
    ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(x)", "aten::mm", "vector product"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(x)", "aten::addmm", "reduction"),
    ("void epilogue::impl::globalKernel<float, float>(int)", "aten::addmm", "elementwise"),
    ("volta_scudnn_128x64_relu_interior_nn_v1", "", "convolution"),
    ("volta_scudnn_128x64_stridedB_splitK_medium_nn_v1", "", "convolution backward"),
    ("sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "", "convolution backward"),
    ("_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock8EpilogueI", "",
     "convolution"),
    ("dgrad2d_c1_k1_nhwc_specialized", "aten::convolution_backward", "depthwise"),
    ("void cudnn::ops::nchwToNhwcKernel<float, float>(x)", "aten::cudnn_convolution", "moving"),
    ("void cudnn::bn_bw_1C11_kernel_new<float, float2>(x)", "aten::cudnn_batch_norm_backward", "normalization"),
    ("fmha_cutlassB_f32_aligned_64x64_k32_dropout_sm80(x)", "aten::_efficient_attention_backward",
     "attention backward"),
    ("attn_fwd", "aten::_flash_attention_forward", "attention"),
    ("void fbgemm_gpu::permute_2D_data_kernel<true, long>(x)", "fbgemm::permute_2D_sparse_data", "elementwise"),
    ("void linearize_index_kernel<long>(x)", "", "indexing"),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce", "communication"),
    ("gloo:all_reduce", "", "communication"),
    ("Memcpy HtoD (Pageable -> Device)", "aten::copy_", "transfer"),
    ("Stream Sync", "", "synchronization"),
)  # fmt: skip


@pytest.mark.parametrize(("kernel", "operator", "expected"), KERNELS)
def test_the_class_of_a_kernel(kernel, operator, expected):
    assert expected == class_of(operator, kernel)
    assert expected in CLASSES


def test_operators_of_generated_kernels_keep_the_class_of_what_they_fuse():
    assert "elementwise" == class_of("triton_poi_fused_add_matmul_3")
    assert "indexing" == class_of("triton_poi_fused_embedding_dense_backward_14")


@pytest.mark.parametrize("operator", ["aten::mm", "aten::linear", "aten::_convolution", "mm", "sgemm", "aten::bmm.out"])
def test_matrix_operators(operator):
    assert class_of(operator) in MATRIX_CLASSES


@pytest.fixture(scope="module")
def stream():
    """All kernels above on one stream."""
    builder = GraphBuilder()
    resource = builder.resource("stream 7", kind=ResourceKind.STREAM)
    for kernel, operator, _ in KERNELS[:-4]:
        builder.task(kernel, kind=Kind.COMPUTE, resource=resource, duration_ns=300, op=operator)
    return builder.build()


def test_both_precisions_speed_up_the_same_kernels(stream):
    """Once three sets of names disagreed: batch norms of cuDNN were products, those of Tensile were none."""
    is_matrix = does_matrix_work(stream)
    rounded = tf32(stream).duration_ns < 300
    halved = amp(stream).published().duration_ns == 100
    by_type = products_by_type(stream, np.ones(stream.num_tasks, dtype=bool))

    low = names_16_bits(stream, np.ones(stream.num_tasks, dtype=bool))  # these run in 16 bits already

    assert [row[2] in MATRIX_CLASSES for row in KERNELS[:-4]] == is_matrix.tolist()
    assert (is_matrix & ~low).tolist() == halved.tolist()
    assert is_matrix.tolist() == np.logical_or.reduce(list(by_type.values())).tolist()
    assert by_type["fp32"].tolist() == rounded.tolist()


@pytest.mark.parametrize("name", ["all_reduce", "allreduce", "all-reduce bucket 1", "ncclDevKernel_AllReduce_Sum_f32"])
def test_all_who_look_for_gradients_find_the_same_collectives(name):
    builder = GraphBuilder()
    resource = builder.resource("network", kind=ResourceKind.LINK)
    for text in (name, "reduce_scatter", "_allgather_base_"):
        builder.task(text, kind=Kind.COMM, resource=resource, duration_ns=1, op=text)
    graph = builder.build()

    assert "all_reduce" == collective_of(name, is_collective=True)
    assert [True, False, False] == all_reduces(graph).tolist()
    assert [False, True, False] == find_scattered_gradients(graph).tolist()
    assert ["all_reduce", "reduce_scatter", "all_gather"] == [OPERATIONS[code] for code in operation_mask(graph)]


def test_kinds_of_a_real_trace_agree_with_their_classes():
    graph = load_kineto(shared_path("replay/kineto/nccl_collectives_rank0_of_2.json.gz"))
    on_device = np.append(graph.resources["kind"] == ResourceKind.STREAM, False)[graph.tasks["resource"]]
    names, kinds = graph.tasks.strings("name"), graph.tasks["kind"]
    expected = {"communication": Kind.COMM, "transfer": Kind.COPY}
    rows = np.flatnonzero(on_device).tolist()

    assert rows
    assert all(kinds[row] == expected.get(class_of("", names.decode(row)), Kind.COMPUTE) for row in rows)


def test_a_graph_without_operators_is_told_by_names():
    builder = GraphBuilder()
    resource = builder.resource("stream 7", kind=ResourceKind.STREAM)
    for name in ("volta_sgemm_32x32", "forward"):
        builder.task(name, kind=Kind.COMPUTE, resource=resource, duration_ns=1)

    assert [True, False] == does_matrix_work(builder.build()).tolist()
