#include "jit/program.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace cuvil::jit {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI8,  DType::kI16, DType::kI32,
                             DType::kI64, DType::kU8,  DType::kU16,  DType::kU32, DType::kU64, DType::kBool};

std::optional<DType> find_dtype(std::string_view name) {
  for (DType t : kDTypes)
    if (name == name_of(t)) return t;
  return std::nullopt;
}

// At most 60 printable characters of text that came from a model file.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, 60)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 60 ? "...'" : "'");
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find(' ', i), text.size());
    if (end > i) out.push_back(text.substr(i, end - i));
    i = end + 1;
  }
  return out;
}

template <typename T>
std::optional<T> number(std::string_view text, int base) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string at(size_t index) { return concat("Pointwise program, instruction ", index, ": "); }

Instr parse_instr(const std::string& text, size_t index) {
  const std::vector<std::string_view> words = words_of(text);
  require(!words.empty(), at(index), "empty");
  const size_t dot = words[0].find('.');
  const std::string_view name = words[0].substr(0, dot);
  const std::optional<PwOp> op = find_op(name);
  require(op.has_value(), at(index), "unknown operation in ", quoted(text));
  const std::optional<DType> dtype =
      dot == std::string_view::npos ? std::nullopt : find_dtype(words[0].substr(dot + 1));
  require(dtype.has_value(), at(index), quoted(text), " names no known dtype after ", name, ".");
  Instr out;
  out.op = *op;
  out.dtype = *dtype;
  const bool leaf = *op == PwOp::kLoad || *op == PwOp::kConst;
  const size_t arity = leaf ? 1 : static_cast<size_t>(info(*op).arity);
  require(words.size() == arity + 1, at(index), quoted(text), " has ", words.size() - 1, " operands, ", name, " takes ",
          arity);
  if (*op == PwOp::kConst) {
    const std::string_view hex = words[1];
    std::optional<uint64_t> bits;
    if (hex.starts_with("0x")) bits = number<uint64_t>(hex.substr(2), 16);
    require(bits.has_value(), at(index), quoted(text), ": a constant is 0x and at most 16 hexadecimal digits");
    out.bits = *bits;
    return out;
  }
  for (size_t i = 1; i < words.size(); ++i) {
    const std::optional<int> value = number<int>(words[i], 10);
    require(value.has_value(), at(index), quoted(text), ": operand ", i, " is no number");
    (leaf ? out.input : out.args[i - 1]) = *value;
  }
  out.num_args = leaf ? 0 : static_cast<int>(arity);
  return out;
}

void check_dtypes(const Program& program, size_t index) {
  const Instr& instr = program.code[index];
  const PwInfo& row = info(instr.op);
  const auto arg = [&](int i) -> const Instr& { return program.code[static_cast<size_t>(instr.args[i])]; };
  const auto expect = [&](int i, DType want) {
    require(arg(i).dtype == want, at(index), row.name, ".", name_of(instr.dtype), ": operand ", i, " is ",
            name_of(arg(i).dtype), ", required ", name_of(want));
  };
  const auto member = [&](DType t) {
    require((set_of(t) & row.dtypes) != 0, at(index), row.name, " is not defined for ", name_of(t));
  };
  switch (row.rule) {
    case PwRule::kLoad: {
      const int k = instr.input, n = static_cast<int>(program.inputs.size());
      require(k >= 0 && k < n, at(index), "load of input ", k, ", the node has ", n);
      const DType have = program.inputs[static_cast<size_t>(k)];
      require(have == instr.dtype, at(index), "load.", name_of(instr.dtype), " of input ", k, ", which is ",
              name_of(have));
      break;
    }
    case PwRule::kConst: {
      const size_t bits = 8 * size_of(instr.dtype);
      const uint64_t limit = instr.dtype == DType::kBool ? 1 : bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
      require(instr.bits <= limit, at(index), "the constant does not fit in ", name_of(instr.dtype));
      break;
    }
    case PwRule::kCast:
      break;
    case PwRule::kSame:
      member(instr.dtype);
      for (int i = 0; i < instr.num_args; ++i) expect(i, instr.dtype);
      break;
    case PwRule::kParams:
      member(instr.dtype);
      expect(0, instr.dtype);
      for (int i = 1; i < instr.num_args; ++i) {
        require(arg(i).op == PwOp::kConst, at(index), row.name, ": operand ", i, " must be a const instruction");
        if (arg(i).dtype != DType::kF32) expect(i, instr.dtype);
      }
      break;
    case PwRule::kCompare:
    case PwRule::kTest:
      require(instr.dtype == DType::kBool, at(index), row.name, " gives bool, found ", name_of(instr.dtype));
      member(arg(0).dtype);
      for (int i = 1; i < instr.num_args; ++i) expect(i, arg(0).dtype);
      break;
    case PwRule::kWhere:
      expect(0, DType::kBool);
      expect(1, instr.dtype);
      expect(2, instr.dtype);
      break;
  }
}

}  // namespace

void validate(const Program& program) {
  const auto within = [](size_t n, int most, const char* what) {
    require(n >= 1 && n <= static_cast<size_t>(most), "Pointwise program: ", n, " ", what, ", required 1 to ", most);
  };
  within(program.code.size(), kMaxInstructions, "instructions");
  within(program.inputs.size(), kMaxInputs, "inputs");
  within(program.outputs.size(), kMaxOutputs, "outputs");
  for (size_t k = 0; k < program.inputs.size(); ++k)
    require(set_of(program.inputs[k]) != 0, "Pointwise program: input ", k, " is ", name_of(program.inputs[k]),
            ", required a number or bool");
  for (size_t i = 0; i < program.code.size(); ++i) {
    const Instr& instr = program.code[i];
    require(set_of(instr.dtype) != 0, at(i), "dtype ", name_of(instr.dtype), " is not supported");
    require(instr.num_args == info(instr.op).arity, at(i), info(instr.op).name, " has ", instr.num_args,
            " operands, required ", info(instr.op).arity);
    for (int a = 0; a < instr.num_args; ++a) {
      const int operand = instr.args[static_cast<size_t>(a)];
      require(operand >= 0 && operand < static_cast<int>(i), at(i), "operand ", a, " is instruction ", operand,
              ", required an earlier one");
    }
    check_dtypes(program, i);
  }
  for (size_t o = 0; o < program.outputs.size(); ++o)
    require(program.outputs[o] >= 0 && program.outputs[o] < static_cast<int>(program.code.size()),
            "Pointwise program: output ", o, " is instruction ", program.outputs[o], ", the program has ",
            program.code.size());
}

Program parse_program(const std::vector<std::string>& text, const std::vector<int64_t>& outputs,
                      const std::vector<DType>& inputs) {
  // Before parsing, so that a hostile attribute costs no memory.
  require(text.size() <= static_cast<size_t>(kMaxInstructions), "Pointwise program: ", text.size(),
          " instructions, required 1 to ", kMaxInstructions);
  require(outputs.size() <= static_cast<size_t>(kMaxOutputs), "Pointwise program: ", outputs.size(),
          " outputs, required 1 to ", kMaxOutputs);
  Program out;
  out.inputs = inputs;
  for (size_t i = 0; i < text.size(); ++i) out.code.push_back(parse_instr(text[i], i));
  for (int64_t o : outputs) out.outputs.push_back(o >= 0 && o < kMaxInstructions ? static_cast<int>(o) : -1);
  validate(out);
  return out;
}

std::string to_string(const Instr& instr) {
  std::ostringstream out;
  out << info(instr.op).name << '.' << name_of(instr.dtype);
  if (instr.op == PwOp::kLoad) out << ' ' << instr.input;
  if (instr.op == PwOp::kConst) out << " 0x" << std::hex << instr.bits << std::dec;
  for (int i = 0; i < instr.num_args; ++i) out << ' ' << instr.args[static_cast<size_t>(i)];
  return out.str();
}

}  // namespace cuvil::jit
