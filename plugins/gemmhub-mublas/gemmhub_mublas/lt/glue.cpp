// What gemmhub calls of muBLASLt, compiled against the user's own headers: the numbers of its enumerations, the sizes
// of its structures and the linkage of its functions are then right by construction.
//
// gemmhub defines HAS_<name> for each enumerator that this header has; those without it below are always needed.
// Functions return the library's status, 0 for success; GEMMHUB_NO_NAME where the header lacks what a form needs.
#include <mublas.h>
#include <mublasLt.h>

#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace {

constexpr int GEMMHUB_NO_NAME = -1;
constexpr int GEMMHUB_NO_MEMORY = -2;
constexpr int GEMMHUB_NO_ALGORITHM = -3;

// The order of TYPES, COMPUTES and EPILOGUES in library.py and lower.py.
bool type_of(int code, musaDataType_t& type) {
  switch (code) {
#ifdef HAS_MUSA_R_16F
    case 0: type = MUSA_R_16F; return true;
#endif
#ifdef HAS_MUSA_R_16BF
    case 1: type = MUSA_R_16BF; return true;
#endif
#ifdef HAS_MUSA_R_32F
    case 2: type = MUSA_R_32F; return true;
#endif
#ifdef HAS_MUSA_R_64F
    case 3: type = MUSA_R_64F; return true;
#endif
#ifdef HAS_MUSA_R_8I
    case 4: type = MUSA_R_8I; return true;
#endif
#ifdef HAS_MUSA_R_32I
    case 5: type = MUSA_R_32I; return true;
#endif
#ifdef HAS_MUSA_R_8F_E4M3
    case 6: type = MUSA_R_8F_E4M3; return true;
#endif
#ifdef HAS_MUSA_R_8F_E5M2
    case 7: type = MUSA_R_8F_E5M2; return true;
#endif
    default: return false;
  }
}

bool compute_of(int code, mublasComputeType_t& compute) {
  switch (code) {
#ifdef HAS_MUBLAS_COMPUTE_32F
    case 0: compute = MUBLAS_COMPUTE_32F; return true;
#endif
#ifdef HAS_MUBLAS_COMPUTE_64F
    case 1: compute = MUBLAS_COMPUTE_64F; return true;
#endif
#ifdef HAS_MUBLAS_COMPUTE_32I
    case 2: compute = MUBLAS_COMPUTE_32I; return true;
#endif
#ifdef HAS_MUBLAS_COMPUTE_32F_FAST_TF32
    case 3: compute = MUBLAS_COMPUTE_32F_FAST_TF32; return true;
#endif
    default: return false;
  }
}

}  // namespace

extern "C" {

struct GemmhubMatrix {
  std::int64_t rows, cols, ld, stride;
  std::int32_t type, alignment;
};

struct GemmhubForm {
  GemmhubMatrix a, b, c, d;
  std::int32_t compute, scale, trans_a, trans_b, count, epilogue;
};

}  // extern "C"

namespace {

// Descriptors of one form, and the algorithms that the library proposed for it.
struct Plan {
  mublasLtMatmulDesc_t operation = nullptr;
  mublasLtMatrixLayout_t layouts[4] = {nullptr, nullptr, nullptr, nullptr};
  std::vector<mublasLtMatmulAlgo_t> algorithms;
  std::mutex bias_lock;  // its address is part of the descriptor: one caller at a time

  ~Plan() {
    for (auto layout : layouts)
      if (layout) mublasLtMatrixLayoutDestroy(layout);
    if (operation) mublasLtMatmulDescDestroy(operation);
  }
};

template <class Name, class Value>
int set(mublasLtMatmulDesc_t operation, Name name, Value value) {
  return mublasLtMatmulDescSetAttribute(operation, name, &value, sizeof value);
}

int set_epilogue(mublasLtMatmulDesc_t operation, int code) {
  switch (code) {
    case 0: return 0;
#ifdef HAS_MUBLASLT_EPILOGUE_BIAS
    case 1: return set(operation, MUBLASLT_MATMUL_DESC_EPILOGUE, MUBLASLT_EPILOGUE_BIAS);
#endif
#ifdef HAS_MUBLASLT_EPILOGUE_RELU
    case 2: return set(operation, MUBLASLT_MATMUL_DESC_EPILOGUE, MUBLASLT_EPILOGUE_RELU);
#endif
#ifdef HAS_MUBLASLT_EPILOGUE_RELU_BIAS
    case 3: return set(operation, MUBLASLT_MATMUL_DESC_EPILOGUE, MUBLASLT_EPILOGUE_RELU_BIAS);
#endif
#ifdef HAS_MUBLASLT_EPILOGUE_GELU
    case 4: return set(operation, MUBLASLT_MATMUL_DESC_EPILOGUE, MUBLASLT_EPILOGUE_GELU);
#endif
#ifdef HAS_MUBLASLT_EPILOGUE_GELU_BIAS
    case 5: return set(operation, MUBLASLT_MATMUL_DESC_EPILOGUE, MUBLASLT_EPILOGUE_GELU_BIAS);
#endif
    default: return GEMMHUB_NO_NAME;
  }
}

// Members of the heuristic's result whose names are not public: where this header calls them otherwise, an algorithm
// counts as usable and gets all the workspace there may be.
template <class Result>
auto usable(const Result& result, int) -> decltype(result.state == MUBLAS_STATUS_SUCCESS) {
  return result.state == MUBLAS_STATUS_SUCCESS;
}
template <class Result>
bool usable(const Result&, long) {
  return true;
}
template <class Result>
auto workspace_of(const Result& result, std::uint64_t, int) -> decltype(std::uint64_t(result.workspaceSize)) {
  return result.workspaceSize;
}
template <class Result>
std::uint64_t workspace_of(const Result&, std::uint64_t limit, long) {
  return limit;
}

int make_layout(const GemmhubMatrix& matrix, int count, mublasLtMatrixLayout_t& layout) {
  musaDataType_t type;
  if (!type_of(matrix.type, type)) return GEMMHUB_NO_NAME;
  if (int status = mublasLtMatrixLayoutCreate(&layout, type, matrix.rows, matrix.cols, matrix.ld)) return status;
  const mublasLtOrder_t order = MUBLASLT_ORDER_COL;
  if (int status = mublasLtMatrixLayoutSetAttribute(layout, MUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order))
    return status;
  if (count == 1) return 0;
#if defined(HAS_MUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) && defined(HAS_MUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
  const std::int32_t matrices = count;
  const std::int64_t stride = matrix.stride;
  if (int status = mublasLtMatrixLayoutSetAttribute(layout, MUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &matrices, sizeof matrices))
    return status;
  return mublasLtMatrixLayoutSetAttribute(layout, MUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
#else
  return GEMMHUB_NO_NAME;
#endif
}

int fill(const GemmhubForm& form, Plan& plan) {
  mublasComputeType_t compute;
  musaDataType_t scale;
  if (!compute_of(form.compute, compute) || !type_of(form.scale, scale)) return GEMMHUB_NO_NAME;
  if (int status = mublasLtMatmulDescCreate(&plan.operation, compute, scale)) return status;
  const mublasOperation_t operations[2] = {MUBLAS_OP_N, MUBLAS_OP_T};
  if (int status = set(plan.operation, MUBLASLT_MATMUL_DESC_TRANSA, operations[form.trans_a != 0])) return status;
  if (int status = set(plan.operation, MUBLASLT_MATMUL_DESC_TRANSB, operations[form.trans_b != 0])) return status;
  if (int status = set_epilogue(plan.operation, form.epilogue)) return status;
  const GemmhubMatrix* matrices[4] = {&form.a, &form.b, &form.c, &form.d};
  for (int i = 0; i < 4; i++)
    if (int status = make_layout(*matrices[i], form.count, plan.layouts[i])) return status;
  return 0;
}

int set_alignments(const GemmhubForm& form, mublasLtMatmulPreference_t preference) {
#ifdef HAS_MUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
  const decltype(MUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) names[4] = {
      MUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, MUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      MUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, MUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  const std::uint32_t bytes[4] = {std::uint32_t(form.a.alignment), std::uint32_t(form.b.alignment),
                                  std::uint32_t(form.c.alignment), std::uint32_t(form.d.alignment)};
  for (int i = 0; i < 4; i++)
    if (int status = mublasLtMatmulPreferenceSetAttribute(preference, names[i], &bytes[i], sizeof bytes[i]))
      return status;
#else
  (void)form, (void)preference;
#endif
  return 0;
}

}  // namespace

extern "C" {

int gemmhub_lt_create(void** handle) { return mublasLtCreate(reinterpret_cast<mublasLtHandle_t*>(handle)); }

// Descriptors for `form`; *made is to be given to gemmhub_lt_forget.
int gemmhub_lt_plan(const GemmhubForm* form, void** made) {
  Plan* plan = new (std::nothrow) Plan;
  if (!plan) return GEMMHUB_NO_MEMORY;
  if (int status = fill(*form, *plan)) {
    delete plan;
    return status;
  }
  *made = plan;
  return 0;
}

void gemmhub_lt_forget(void* plan) { delete static_cast<Plan*>(plan); }

// Ask for at most `wanted` algorithms with at most `limit` bytes of workspace; they stay in the plan. Writes the
// workspace of each and how many there are. Call once for a plan, before it is run.
int gemmhub_lt_propose(void* handle, void* at, const GemmhubForm* form, std::uint64_t limit, int wanted,
                       std::uint64_t* workspaces, int* found) {
  Plan& plan = *static_cast<Plan*>(at);
  mublasLtMatmulPreference_t preference = nullptr;
  *found = 0;
  if (int status = mublasLtMatmulPreferenceCreate(&preference)) return status;
  const std::size_t bytes = limit;
  int status = mublasLtMatmulPreferenceSetAttribute(preference, MUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                    sizeof bytes);
  if (!status) status = set_alignments(*form, preference);
  int count = 0;
  try {
    std::vector<mublasLtMatmulHeuristicResult_t> results(wanted);
    if (!status)
      status = mublasLtMatmulAlgoGetHeuristic(static_cast<mublasLtHandle_t>(handle), plan.operation, plan.layouts[0],
                                              plan.layouts[1], plan.layouts[2], plan.layouts[3], preference, wanted,
                                              results.data(), &count);
    for (int i = 0; !status && i < count; i++) {
      const std::uint64_t needed = workspace_of(results[i], limit, 0);
      if (!usable(results[i], 0) || needed > limit) continue;
      workspaces[*found] = needed;
      plan.algorithms.push_back(results[i].algo);
      ++*found;
    }
  } catch (const std::bad_alloc&) {
    status = GEMMHUB_NO_MEMORY;
  }
  mublasLtMatmulPreferenceDestroy(preference);
  return status;
}

// D = alpha op(A) op(B) + beta C, with the plan's epilogue. `algorithm` counts the proposed ones; -1 leaves the choice
// to the library. `bias` is null where the epilogue has none, `c` where beta is 0.
int gemmhub_lt_matmul(void* handle, void* at, int algorithm, const void* alpha, const void* a, const void* b,
                      const void* beta, const void* c, void* d, const void* bias, void* workspace,
                      std::uint64_t workspace_bytes, void* stream) {
  Plan& plan = *static_cast<Plan*>(at);
  if (algorithm >= static_cast<int>(plan.algorithms.size())) return GEMMHUB_NO_ALGORITHM;
  std::unique_lock<std::mutex> lock(plan.bias_lock, std::defer_lock);
  if (bias) {
    lock.lock();
#ifdef HAS_MUBLASLT_MATMUL_DESC_BIAS_POINTER
    if (int status = set(plan.operation, MUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)) return status;
#else
    return GEMMHUB_NO_NAME;
#endif
  }
  return mublasLtMatmul(static_cast<mublasLtHandle_t>(handle), plan.operation, alpha, a, plan.layouts[0], b,
                        plan.layouts[1], beta, c ? c : d, plan.layouts[2], d, plan.layouts[3],
                        algorithm < 0 ? nullptr : &plan.algorithms[algorithm], workspace, workspace_bytes,
                        static_cast<musaStream_t>(stream));
}

}  // extern "C"
