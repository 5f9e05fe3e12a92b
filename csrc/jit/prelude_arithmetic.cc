#include "jit/prelude.h"

namespace cuvil::jit {

const char kPreludeArithmetic[] = R"cuda(
template <class T> struct Traits { typedef u32 Bits; static const bool real = false; };
template <> struct Traits<i64> { typedef u64 Bits; static const bool real = false; };
template <> struct Traits<u64> { typedef u64 Bits; static const bool real = false; };
template <> struct Traits<float> { static const bool real = true; };
template <> struct Traits<double> { static const bool real = true; };

// Integers wrap: computed unsigned, since signed overflow is undefined.
#define WRAPPING(name, symbol)                                                   \
  template <class T> FN T name(T a, T b) {                                       \
    if constexpr (Traits<T>::real) return a symbol b;                            \
    else {                                                                       \
      typedef typename Traits<T>::Bits B;                                        \
      return T(B(a) symbol B(b));                                                \
    }                                                                            \
  }
WRAPPING(op_add, +)
WRAPPING(op_sub, -)
WRAPPING(op_mul, *)

template <class T> FN T op_neg(T a) {
  if constexpr (Traits<T>::real) return -a;
  else return op_sub(T(0), a);
}

// Division by zero gives 0; the least integer divided by -1 wraps to itself.
template <class T> FN T op_div(T a, T b) {
  if constexpr (Traits<T>::real) return a / b;
  else {
    if (b == T(0)) return T(0);
    if (T(-1) < T(0) && b == T(-1)) return op_neg(a);
    return T(a / b);
  }
}
FN float op_fmod(float a, float b) { return fmodf(a, b); }
FN double op_fmod(double a, double b) { return fmod(a, b); }
template <class T> FN T op_fmod(T a, T b) {  // the sign of the dividend
  if (b == T(0) || (T(-1) < T(0) && b == T(-1))) return T(0);
  return T(a % b);
}
template <class T> FN T op_mod(T a, T b) {  // the sign of the divisor
  const T r = op_fmod(a, b);
  return r != T(0) && (r < T(0)) != (b < T(0)) ? T(r + b) : r;
}

// A NaN on either side is the result; for integers the extra test folds away.
template <class T> FN T op_min(T a, T b) { return a < b || a != a ? a : b; }
template <class T> FN T op_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> FN T op_clip(T x, T low, T high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}
template <class T> FN T op_relu(T x) { return x < T(0) ? T(0) : x; }
template <class T> FN T op_prelu(T x, T slope) { return x < T(0) ? op_mul(x, slope) : x; }
template <class T> FN T op_abs(T x) {
  if constexpr (Traits<T>::real) return x < T(0) ? -x : x + T(0);  // + 0 turns -0 into +0
  else return x < T(0) ? op_neg(x) : x;
}
template <class T> FN T op_sign(T x) { return T(T(x > T(0)) - T(x < T(0))); }  // 0 for NaN, as ONNX Runtime
template <class T> FN T op_identity(T x) { return x; }

template <class T> FN bool op_equal(T a, T b) { return a == b; }
template <class T> FN bool op_less(T a, T b) { return a < b; }
template <class T> FN bool op_less_equal(T a, T b) { return a <= b; }
template <class T> FN bool op_greater(T a, T b) { return a > b; }
template <class T> FN bool op_greater_equal(T a, T b) { return a >= b; }
template <class T> FN bool op_isnan(T x) { return x != x; }
template <class T> FN bool op_isinf(T x) { return x == x && x - x != x - x; }
FN bool op_and(bool a, bool b) { return a && b; }
FN bool op_or(bool a, bool b) { return a || b; }
FN bool op_xor(bool a, bool b) { return a != b; }
FN bool op_not(bool a) { return !a; }
template <class T> FN T op_where(bool condition, T a, T b) { return condition ? a : b; }

template <class T> FN T op_bitand(T a, T b) { return T(a & b); }
template <class T> FN T op_bitor(T a, T b) { return T(a | b); }
template <class T> FN T op_bitxor(T a, T b) { return T(a ^ b); }
template <class T> FN T op_bitnot(T a) { return T(~a); }
// A count outside [0, width) shifts every bit out.
template <class T> FN T op_shl(T a, T count) {
  const bool inside = count >= T(0) && u64(count) < 8 * sizeof(T);
  return inside ? T(typename Traits<T>::Bits(a) << u32(count)) : T(0);
}
template <class T> FN T op_shr(T a, T count) {
  const bool inside = count >= T(0) && u64(count) < 8 * sizeof(T);
  return inside ? T(a >> u32(count)) : a < T(0) ? T(-1) : T(0);
}

// Floating point to integer: towards zero, NaN to 0, beyond the range of i32 / i64 to its end. Narrower and unsigned
// types keep the low bits of that, as the CPU's conversion does.
template <class T, class F> FN T to_int(F x) {
  if (x != x) return T(0);
  if constexpr (sizeof(T) < 4 || (sizeof(T) == 4 && T(-1) < T(0))) return T(i32(x));
  else if constexpr (sizeof(T) == 4) return T(i64(x));
  else if constexpr (T(-1) < T(0)) return T(i64(x));
  else return x < F(0) ? T(i64(x)) : T(u64(x));
}
)cuda";

}  // namespace cuvil::jit
