#include "ep/registry.h"

#include <map>

#include "core/error.h"
#include "ep/kernel.h"
#include "ep/memcpy_kernels.h"

namespace cuvil {
namespace {

std::vector<OpEntry>& all_ops() {
  static std::vector<OpEntry> ops;
  return ops;
}

}  // namespace

Register::Register(OpEntry entry) { all_ops().push_back(std::move(entry)); }

const std::vector<OpEntry>& registered_ops() { return all_ops(); }

}  // namespace cuvil

namespace cuvil::ep {
namespace {

using Key = std::pair<std::string, std::string>;

// Built once: static Register objects have all run by the time ORT loads the library's entry point.
const std::multimap<Key, const OpEntry*>& index() {
  static const std::multimap<Key, const OpEntry*> by_name = [] {
    std::multimap<Key, const OpEntry*> m;
    for (const OpEntry& e : registered_ops()) m.emplace(Key{e.domain, e.type}, &e);
    return m;
  }();
  return by_name;
}

void split(const std::vector<std::pair<int, int>>& pairs, std::vector<int>* first, std::vector<int>* second) {
  for (const auto& [a, b] : pairs) {
    first->push_back(a);
    second->push_back(b);
  }
}

Ort::KernelDef define(const OpEntry& e) {
  Ort::KernelDefBuilder builder;
  // ORT takes an open end (INT_MAX) to mean "the version at the start and no other".
  const int until = e.until == INT_MAX ? INT_MAX - 1 : e.until;
  builder.SetDomain(e.domain).SetOperatorType(e.type).SetSinceVersion(e.since, until).SetExecutionProvider(kEpName);
  for (const int i : e.cpu_inputs) builder.SetInputMemType(static_cast<size_t>(i), OrtMemTypeCPUInput);
  for (const int i : e.cpu_outputs) builder.SetOutputMemType(static_cast<size_t>(i), OrtMemTypeCPUOutput);
  std::vector<int> from, to;
  split(e.aliases, &from, &to);
  if (!from.empty()) builder.AddInputOutputAliases(from, to);
  from.clear(), to.clear();
  split(e.may_inplace, &from, &to);
  if (!from.empty()) builder.AddInputOutputMutableAliases(from, to);
  return builder.Build();
}

void require_no_overlap() {
  const auto& ops = index();
  for (auto a = ops.begin(); a != ops.end(); ++a)
    for (auto b = std::next(a); b != ops.end() && b->first == a->first; ++b)
      require(a->second->until < b->second->since || b->second->until < a->second->since, "op ", a->first.first,
              "::", a->first.second, " is registered twice for overlapping versions");
}

}  // namespace

const OpEntry* find_op(const std::string& domain, const std::string& type, int since, std::string* why) {
  const auto [first, last] = index().equal_range(Key{domain, type});
  if (first == last) {
    *why = "no kernel for this op";
    return nullptr;
  }
  std::string served;
  for (auto it = first; it != last; ++it) {
    const OpEntry& e = *it->second;
    if (since >= e.since && since <= e.until) return &e;
    served += (served.empty() ? "" : ", ") +
              (e.until == INT_MAX ? concat(e.since, " and later") : concat(e.since, " to ", e.until));
  }
  *why = concat("no kernel for version ", since, " of this op; served: ", served);
  return nullptr;
}

Ort::KernelRegistry make_kernel_registry() {
  require_no_overlap();
  Ort::KernelRegistry registry;
  add_memcpy_kernels(registry);
  for (const OpEntry& e : registered_ops()) {
    const Ort::KernelDef def = define(e);
    Ort::ThrowOnError(registry.AddKernel(def, Kernel::create, const_cast<OpEntry*>(&e)));
  }
  return registry;
}

}  // namespace cuvil::ep
