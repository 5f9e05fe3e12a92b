#include "jit/codegen.h"

#include <bit>
#include <sstream>

#include "core/error.h"
#include "jit/prelude.h"

namespace cuvil::jit {
namespace {

// The C type that holds an element in memory, and the one it is computed in.
std::string storage(DType t) { return t == DType::kBool ? "b8" : name_of(t); }
std::string computed(DType t) {
  if (t == DType::kBool) return "bool";
  if (t == DType::kF32 || t == DType::kF16 || t == DType::kBF16) return "float";
  return t == DType::kF64 ? "double" : name_of(t);
}
bool is_half(DType t) { return t == DType::kF16 || t == DType::kBF16; }

// The f32 bit pattern of an f16 one: exact.
uint32_t half_bits_to_float_bits(uint32_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return sign | 0x7f800000u | fraction << 13;
  if (exponent != 0) return sign | (exponent + 112) << 23 | fraction << 13;
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign | std::bit_cast<uint32_t>(magnitude);
}

std::string literal(DType t, uint64_t bits) {
  std::ostringstream out;
  out << std::hex << "0x";
  switch (t) {
    case DType::kF16:
      out << half_bits_to_float_bits(static_cast<uint32_t>(bits)) << "u";
      return "__uint_as_float(" + out.str() + ")";
    case DType::kBF16:
      out << (bits << 16) << "u";
      return "__uint_as_float(" + out.str() + ")";
    case DType::kF32:
      out << bits << "u";
      return "__uint_as_float(" + out.str() + ")";
    case DType::kF64:
      out << bits << "ull";
      return "__longlong_as_double((long long)" + out.str() + ")";
    default:
      out << bits << "ull";
      return "(" + computed(t) + ")" + out.str();
  }
}

// Writes one kernel. Names: inK pointers, xK loaded groups, sK scalars, vI instruction results, yO output groups.
class Writer {
 public:
  Writer(const Program& program, const Specialisation& spec)
      : program_(program), spec_(spec), slots_(program, spec), used_(program.inputs.size(), false) {
    for (const Instr& instr : program.code)
      if (instr.op == PwOp::kLoad) used_[static_cast<size_t>(instr.input)] = true;
  }

  std::string kernel() {
    out_ << "struct Params { u64 word[" << slots_.total() << "]; };\n"
         << "typedef " << (spec_.wide ? "u64" : "u32") << " I;\n"
         << "const int V = " << spec_.vector << ", U = " << spec_.unroll << ", T = " << kThreads << ";\n"
         << "const bool STREAM = " << (spec_.stream ? "true" : "false") << ";\n"
         << "extern \"C\" __global__ void __launch_bounds__(T) " << kKernelName << "(const Params p) {\n"
         << "const I count = I(p.word[" << slots_.count() << "]);\n"
         << "const I tile = I(blockIdx.x) * (T * U * V), first = tile + threadIdx.x * V;\n"
         << "const bool whole = tile + T * U * V <= count;\n";
    pointers();
    declarations();
    full_loads();
    broadcast_loads();
    compute();
    stores();
    out_ << "}\n";
    return out_.str();
  }

 private:
  bool is(size_t k, Access access) const { return used_[k] && spec_.access[k] == access; }

  void pointers() {
    for (size_t k = 0; k < used_.size(); ++k) {
      if (!used_[k]) continue;
      const std::string type = storage(program_.inputs[k]);
      out_ << "const " << type << "* const in" << k << " = reinterpret_cast<const " << type << "*>(p.word["
           << slots_.input(static_cast<int>(k)) << "]);\n";
    }
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const std::string type = storage(program_.output_dtype(o));
      out_ << type << "* const out" << o << " = reinterpret_cast<" << type << "*>(p.word["
           << slots_.output(static_cast<int>(o)) << "]);\n";
    }
  }

  void declarations() {
    for (size_t k = 0; k < used_.size(); ++k) {
      if (!used_[k]) continue;
      if (spec_.access[k] == Access::kScalar)
        out_ << "const " << computed(program_.inputs[k]) << " s" << k << " = up(in" << k << "[0]);\n";
      else
        out_ << "Vec<" << storage(program_.inputs[k]) << ", V> x" << k << "[U] = {};\n";
    }
  }

  void each_group() { out_ << "#pragma unroll\nfor (int u = 0; u < U; ++u) {\nconst I e = first + u * (T * V);\n"; }

  // Every load is issued before the first use: the loads of a thread are in flight together.
  void full_loads() {
    std::vector<size_t> full;
    for (size_t k = 0; k < used_.size(); ++k)
      if (is(k, Access::kFull)) full.push_back(k);
    if (full.empty()) return;
    out_ << "if (whole) {\n";
    each_group();
    for (size_t k : full) out_ << "load<STREAM>(x" << k << "[u], in" << k << " + e);\n";
    out_ << "}\n} else {\n";
    each_group();
    out_ << "if (e < count) {\n";
    for (size_t k : full) out_ << "load_part(x" << k << "[u], in" << k << " + e, count - e);\n";
    out_ << "}\n}\n}\n";
  }

  // Coordinates c0, c1, ... of element `e` in the collapsed dimensions.
  void coordinates() {
    out_ << "I rest = e;\n";
    for (int d = spec_.rank - 1; d >= 1; --d) {
      const int at = slots_.extent(d);
      out_ << "const I q" << d << " = quotient(rest, I(p.word[" << at << "]), I(p.word[" << at + 1 << "]), I(p.word["
           << at + 2 << "]));\n"
           << "const I c" << d << " = rest - q" << d << " * I(p.word[" << at << "]);\nrest = q" << d << ";\n";
    }
    out_ << "const I c0 = rest;\n";
  }

  std::string offset(size_t k) const {
    std::ostringstream sum;
    for (int d = 0; d < spec_.rank; ++d)
      if (spec_.varies[k] >> d & 1)
        sum << (sum.tellp() > 0 ? " + " : "") << "c" << d << " * I(p.word[" << slots_.stride(static_cast<int>(k), d)
            << "])";
    return sum.str();
  }

  void broadcast_loads() {
    if (spec_.rank == 0) return;
    each_group();
    if (spec_.rows) {
      // A group lies within one row and starts on a multiple of V: inputs that move along it are read as a vector.
      out_ << "if (e < count) {\n";
      coordinates();
      for (size_t k = 0; k < used_.size(); ++k) {
        if (!is(k, Access::kBroadcast)) continue;
        if (spec_.varies[k] >> (spec_.rank - 1) & 1)
          out_ << "load<false>(x" << k << "[u], in" << k << " + (" << offset(k) << "));\n";
        else
          out_ << "const " << storage(program_.inputs[k]) << " b" << k << " = in" << k << "[" << offset(k) << "];\n"
               << "#pragma unroll\nfor (int v = 0; v < V; ++v) x" << k << "[u].e[v] = b" << k << ";\n";
      }
      out_ << "}\n";
    } else {
      out_ << "const I start = e;\n#pragma unroll\nfor (int v = 0; v < V; ++v) {\nconst I e = start + v;\n"
           << "if (e < count) {\n";
      coordinates();
      for (size_t k = 0; k < used_.size(); ++k)
        if (is(k, Access::kBroadcast)) out_ << "x" << k << "[u].e[v] = in" << k << "[" << offset(k) << "];\n";
      out_ << "}\n}\n";
    }
    out_ << "}\n";
  }

  void compute() {
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      out_ << "Vec<" << storage(program_.output_dtype(o)) << ", V> y" << o << "[U];\n";
    out_ << "#pragma unroll\nfor (int u = 0; u < U; ++u) {\n#pragma unroll\nfor (int v = 0; v < V; ++v) {\n";
    for (size_t i = 0; i < program_.code.size(); ++i)
      out_ << "const " << computed(program_.code[i].dtype) << " v" << i << " = " << expression(program_.code[i])
           << ";\n";
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      out_ << "y" << o << "[u].e[v] = down<" << storage(program_.output_dtype(o)) << ">(v" << program_.outputs[o]
           << ");\n";
    out_ << "}\n}\n";
  }

  std::string expression(const Instr& instr) const {
    const auto arg = [&](int i) { return "v" + std::to_string(instr.args[static_cast<size_t>(i)]); };
    if (instr.op == PwOp::kLoad) {
      const std::string k = std::to_string(instr.input);
      if (spec_.access[static_cast<size_t>(instr.input)] == Access::kScalar) return "s" + k;
      return "up(x" + k + "[u].e[v])";
    }
    if (instr.op == PwOp::kConst) return literal(instr.dtype, instr.bits);
    if (instr.op == PwOp::kCast) return cast(instr, arg(0));
    const PwInfo& row = info(instr.op);
    std::string call = concat("op_", row.name, "(");
    for (int i = 0; i < instr.num_args; ++i) {
      if (i) call += ", ";
      if (i && row.rule == PwRule::kParams) call += concat("(", computed(instr.dtype), ")");
      call += arg(i);
    }
    call += ")";
    return is_half(instr.dtype) && !row.exact ? concat("rounded<", storage(instr.dtype), ">(", call, ")") : call;
  }

  std::string cast(const Instr& instr, const std::string& value) const {
    const DType from = program_.code[static_cast<size_t>(instr.args[0])].dtype, to = instr.dtype;
    if (from == to) return value;
    if (to == DType::kBool) return value + " != 0";
    if (is_half(to)) return concat("rounded<", storage(to), ">((float)", value, ")");
    const bool to_integer = !is_float(to);
    if (is_float(from) && to_integer) return concat("to_int<", computed(to), ">(", value, ")");
    return concat("(", computed(to), ")", value);
  }

  void stores() {
    out_ << "if (whole) {\n";
    each_group();
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      out_ << "store<STREAM>(out" << o << " + e, y" << o << "[u]);\n";
    out_ << "}\n} else {\n";
    each_group();
    out_ << "if (e < count) {\n";
    for (size_t o = 0; o < program_.outputs.size(); ++o)
      out_ << "store_part(out" << o << " + e, y" << o << "[u], count - e);\n";
    out_ << "}\n}\n}\n";
  }

  const Program& program_;
  const Specialisation& spec_;
  const ParamSlots slots_;
  std::vector<bool> used_;
  std::ostringstream out_;
};

}  // namespace

std::string generate(const Program& program, const Specialisation& spec) {
  // How the functions that cost most to compile are defined.
  const char* math = spec.outline ? "#define MATH_FN static __device__ __noinline__\n" : "#define MATH_FN FN\n";
  return concat(kPreludeMemory, kPreludeArithmetic, math, kPreludeMath, Writer(program, spec).kernel());
}

}  // namespace cuvil::jit
