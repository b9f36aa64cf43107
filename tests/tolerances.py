"""How far a served probability may be from the one it must equal: max |dp| over all options. Stated once, used everywhere.

Source: the project's design, section "Numbers that define the same answer".
"""

# FP32: one request against the reference; hit, chunked, batched, reordered against the request alone.
FP32 = 1e-5
# FP32 over several tensor-parallel ranks, whose sums have another order.
FP32_TENSOR_PARALLEL = 5e-5
BF16 = 1e-2
# In BF16 the most probable option must also be the same wherever the reference's margin exceeds this.
BF16_MARGIN = 0.05
