#include "jit/prelude.h"

namespace cuvil::jit {

const char kPreludeMath[] = R"cuda(
#define MATH(name, f, d)                       \
  MATH_FN float name(float x) { return f(x); } \
  MATH_FN double name(double x) { return d(x); }
MATH(op_sqrt, sqrtf, sqrt)
MATH(op_exp, expf, exp)
MATH(op_log, logf, log)
MATH(op_erf, erff, erf)
MATH(op_tanh, tanhf, tanh)
MATH(op_sin, sinf, sin)
MATH(op_cos, cosf, cos)
MATH(op_tan, tanf, tan)
MATH(op_asin, asinf, asin)
MATH(op_acos, acosf, acos)
MATH(op_atan, atanf, atan)
MATH(op_sinh, sinhf, sinh)
MATH(op_cosh, coshf, cosh)
MATH(op_asinh, asinhf, asinh)
MATH(op_acosh, acoshf, acosh)
MATH(op_atanh, atanhf, atanh)
MATH(op_floor, floorf, floor)
MATH(op_ceil, ceilf, ceil)
MATH(op_round, rintf, rint)  // ties to even
MATH(m_expm1, expm1f, expm1)
MATH(m_log1p, log1pf, log1p)
MATH_FN float m_pow(float x, float y) { return powf(x, y); }
MATH_FN double m_pow(double x, double y) { return pow(x, y); }

template <class T> FN T op_reciprocal(T x) { return T(1) / x; }

// Squares and cubes by multiplication, as ONNX Runtime on the CPU; the test folds when the exponent is a constant.
template <class T> FN T op_pow(T x, T y) {
  if constexpr (Traits<T>::real) {
    if (y == T(2)) return x * x;
    if (y == T(3)) return x * x * x;
    return m_pow(x, y);
  } else {
    if (y < T(0)) {  // |x| > 1 rounds to 0; 0 has no inverse, and gives 0 as division by it does
      if (x == T(1)) return x;
      return x == T(-1) ? (y & T(1) ? x : T(1)) : T(0);
    }
    T r = T(1);
    for (; y != T(0); y = T(y >> 1), x = op_mul(x, x))
      if (y & T(1)) r = op_mul(r, x);
    return r;
  }
}

template <class T> FN T op_sigmoid(T x) {
  const T e = op_exp(-op_abs(x));  // of a number below 0 only: no overflow
  const T r = T(1) / (T(1) + e);
  return x >= T(0) ? r : e * r;
}
template <class T> FN T op_softplus(T x) { return op_relu(x) + m_log1p(op_exp(-op_abs(x))); }
template <class T> FN T op_softsign(T x) { return x / (T(1) + op_abs(x)); }
template <class T> FN T op_hard_sigmoid(T x, T alpha, T beta) { return op_clip(alpha * x + beta, T(0), T(1)); }
template <class T> FN T op_hardswish(T x) { return x * op_hard_sigmoid(x, T(1) / T(6), T(0.5)); }
template <class T> FN T op_gelu(T x) { return T(0.5) * x * (T(1) + op_erf(x * T(0.70710678118654752440))); }
template <class T> FN T op_gelu_tanh(T x) {
  return T(0.5) * x * (T(1) + op_tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)));
}
template <class T> FN T op_silu(T x) { return x * op_sigmoid(x); }
template <class T> FN T op_quick_gelu(T x, T alpha) { return x * op_sigmoid(alpha * x); }
template <class T> FN T op_mish(T x) { return x * op_tanh(op_softplus(x)); }
template <class T> FN T op_leaky_relu(T x, T alpha) { return x < T(0) ? alpha * x : x; }
template <class T> FN T op_elu(T x, T alpha) { return x < T(0) ? alpha * m_expm1(x) : x; }
template <class T> FN T op_selu(T x, T alpha, T gamma) { return gamma * (x > T(0) ? x : alpha * m_expm1(x)); }
template <class T> FN T op_celu(T x, T alpha) { return x > T(0) ? x : alpha * m_expm1(x / alpha); }
template <class T> FN T op_thresholded_relu(T x, T alpha) { return x > alpha ? x : T(0); }
)cuda";

}  // namespace cuvil::jit
