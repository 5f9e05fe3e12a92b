#include "plan/einsum_pair.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

namespace cuvil::plan {
namespace {

using Labels = std::vector<int>;

bool contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

Labels concatenate(const Labels& a, const Labels& b, const Labels& c = {}) {
  Labels all = a;
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), c.begin(), c.end());
  return all;
}

int64_t extent_of(const Term& term, const Labels& labels) {
  int64_t n = 1;
  for (int label : labels) n *= term.find(label)->extent;
  return n;
}

// The members of `group` in the order in which `first` has them, then the others.
Labels ordered(const Labels& group, const Labels& first) {
  Labels out;
  for (int label : first)
    if (contains(group, label)) out.push_back(label);
  for (int label : group)
    if (!contains(out, label)) out.push_back(label);
  return out;
}

// The stride of these labels walked as one dimension; nullopt when they are no single run.
std::optional<int64_t> run_stride(const Term& term, const Labels& labels) {
  int64_t stride = 0, next = 0;
  for (size_t i = labels.size(); i-- > 0;) {
    const Axis& axis = *term.find(labels[i]);
    if (i + 1 == labels.size())
      stride = axis.stride;
    else if (axis.stride != next)
      return std::nullopt;
    next = axis.stride * axis.extent;
  }
  return stride;
}

// A matrix [rows, columns] of a batch, somewhere in memory.
struct Operand {
  bool copied = false;  // to [batch, rows, columns]
  bool transposed = false;
  int64_t batch_stride = 0;
};

bool is_matrix(const Term& term, const Labels& rows, const Labels& columns) {
  const auto r = run_stride(term, rows), c = run_stride(term, columns);
  return r && c && (columns.empty() || *c == 1) && (rows.empty() || *r == extent_of(term, columns));
}

Operand place(const Term& term, const Labels& batch, const Labels& rows, const Labels& columns) {
  if (const auto stride = run_stride(term, batch)) {
    if (is_matrix(term, rows, columns)) return {false, false, *stride};
    if (is_matrix(term, columns, rows)) return {false, true, *stride};
  }
  return {true, false, batch.empty() ? 0 : extent_of(term, rows) * extent_of(term, columns)};
}

// One way to write a pair as a batch of matrix products.
struct Layout {
  bool swapped = false;  // b is the left matrix
  Labels batch, rows, columns, summed;
  Operand left, right;
  int64_t cost = 0;  // elements copied before and after
};

struct Groups {
  Labels batch, left, right, summed;
};

Groups group(const Term& left, const Term& right, const std::set<int>& needed) {
  Groups g;
  for (int label : left.labels())
    (!right.find(label) ? g.left : needed.count(label) ? g.batch : g.summed).push_back(label);
  for (int label : right.labels())
    if (!left.find(label)) g.right.push_back(label);
  return g;
}

// Layout with the first `prefix` labels of the right matrix's columns as batch, where there is no other batch.
Layout try_layout(const Term& left, const Term& right, Layout layout, size_t prefix, const Labels* wanted) {
  const auto cut = layout.columns.begin() + static_cast<std::ptrdiff_t>(prefix);
  const Labels shared = layout.batch, own(layout.columns.begin(), cut);
  layout.columns.erase(layout.columns.begin(), cut);
  layout.batch = concatenate(shared, own);
  layout.left = place(left, shared, layout.rows, layout.summed);
  layout.right = place(right, layout.batch, layout.summed, layout.columns);
  layout.cost = (layout.left.copied ? left.size() : 0) + (layout.right.copied ? right.size() : 0);
  const Labels result = concatenate(layout.batch, layout.rows, layout.columns);
  if (wanted && result != *wanted)
    layout.cost += extent_of(right, layout.batch) * extent_of(left, layout.rows) * extent_of(right, layout.columns);
  return layout;
}

// The different orders of `group` that these sequences of labels suggest.
std::vector<Labels> orders(const Labels& group, std::initializer_list<Labels> suggestions) {
  std::vector<Labels> out;
  for (const Labels& suggestion : suggestions) {
    Labels order = ordered(group, suggestion);
    if (std::find(out.begin(), out.end(), order) == out.end()) out.push_back(std::move(order));
  }
  return out;
}

// The cheapest layout over the orders in which output and operands have their labels; the first one without copies.
Layout choose_layout(const Term& a, const Term& b, const std::set<int>& needed, const Labels& output, bool last) {
  std::optional<Layout> best;
  for (const bool swapped : {false, true}) {
    const Term &left = swapped ? b : a, &right = swapped ? a : b;
    const Labels in_left = left.labels(), in_right = right.labels();
    const Groups g = group(left, right, needed);
    const std::vector<Labels> batches = orders(g.batch, {output, in_left, in_right});
    const std::vector<Labels> rows = orders(g.left, {output, in_left});
    const std::vector<Labels> columns = orders(g.right, {output, in_right});
    const std::vector<Labels> sums = orders(g.summed, {in_left, in_right});
    for (size_t i = 0; i < batches.size() * rows.size() * columns.size() * sums.size(); ++i) {
      size_t rest = i;
      const auto pick = [&rest](const std::vector<Labels>& from) {
        const Labels& chosen = from[rest % from.size()];
        rest /= from.size();
        return chosen;
      };
      Layout layout;
      layout.swapped = swapped;
      layout.batch = pick(batches);
      layout.rows = pick(rows);
      layout.columns = pick(columns);
      layout.summed = pick(sums);
      const size_t most = g.batch.empty() ? layout.columns.size() : 0;
      for (size_t prefix = 0; prefix <= most; ++prefix) {
        Layout found = try_layout(left, right, layout, prefix, last ? &output : nullptr);
        if (best && found.cost >= best->cost) continue;
        best = std::move(found);
        if (best->cost == 0) return *best;
      }
    }
  }
  return *best;
}

Term add_gemm(EinsumPlan* plan, int* tensors, const Term& a, const Term& b, const Layout& layout) {
  Term left = layout.swapped ? b : a, right = layout.swapped ? a : b;
  Labels shared;
  for (int label : layout.batch)
    if (left.find(label)) shared.push_back(label);
  if (layout.left.copied) left = add_copy(plan, tensors, left, concatenate(shared, layout.rows, layout.summed));
  if (layout.right.copied)
    right = add_copy(plan, tensors, right, concatenate(layout.batch, layout.summed, layout.columns));
  EinsumStep step;
  step.kind = EinsumStep::Kind::kGemm;
  step.a = left.tensor;
  step.b = right.tensor;
  step.batch = extent_of(right, layout.batch);
  step.m = extent_of(left, layout.rows);
  step.n = extent_of(right, layout.columns);
  step.k = extent_of(left, layout.summed);
  step.stride_a = layout.left.batch_stride;
  step.stride_b = layout.right.batch_stride;
  step.trans_a = layout.left.transposed;
  step.trans_b = layout.right.transposed;
  step.elements = step.batch * step.m * step.n;
  Term both = left;  // any term that knows all extents
  both.axes.insert(both.axes.end(), right.axes.begin(), right.axes.end());
  plan->steps.push_back(std::move(step));
  return contiguous_term((*tensors)++, concatenate(layout.batch, layout.rows, layout.columns), both);
}

// Without rows, columns or a sum there is no matrix product: one kernel multiplies strided views.
Term add_product(EinsumPlan* plan, int* tensors, const Term& a, const Term& b, const Labels& result,
                 const Labels& summed) {
  EinsumStep step;
  step.kind = EinsumStep::Kind::kProduct;
  step.a = a.tensor;
  step.b = b.tensor;
  step.elements = 1;
  Term both = a;
  both.axes.insert(both.axes.end(), b.axes.begin(), b.axes.end());
  const auto stride = [](const Term& term, int label) { return term.find(label) ? term.find(label)->stride : 0; };
  for (const Labels* labels : {&result, &summed}) {
    const size_t first = step.extent.size();
    for (int label : *labels) {
      const int64_t extent = both.find(label)->extent, sa = stride(a, label), sb = stride(b, label);
      if (labels == &result) step.elements *= extent;
      const bool merges =
          step.extent.size() > first && step.step_a.back() == sa * extent && step.step_b.back() == sb * extent;
      if (merges) {
        step.extent.back() *= extent;
        step.step_a.back() = sa;
        step.step_b.back() = sb;
      } else {
        step.extent.push_back(extent);
        step.step_a.push_back(sa);
        step.step_b.push_back(sb);
      }
    }
    if (labels == &summed) step.reduced = static_cast<int>(step.extent.size() - first);
  }
  plan->steps.push_back(std::move(step));
  return contiguous_term((*tensors)++, result, both);
}

// A batch of dot products is a matrix product of nothing but batches: only few and long ones are worth one.
bool is_product(const Groups& g, const Term& a) {
  constexpr int64_t kLongSum = 4096, kFew = 256;
  if (g.summed.empty()) return true;
  return g.left.empty() && g.right.empty() && (extent_of(a, g.batch) >= kFew || extent_of(a, g.summed) < kLongSum);
}

}  // namespace

const Axis* Term::find(int label) const {
  for (const Axis& axis : axes)
    if (axis.label == label) return &axis;
  return nullptr;
}

Labels Term::labels() const {
  Labels out;
  for (const Axis& axis : axes) out.push_back(axis.label);
  return out;
}

int64_t Term::size() const { return extent_of(*this, labels()); }

bool Term::is_contiguous(const Labels& order) const {
  if (order.size() != axes.size()) return false;
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const Axis* axis = find(order[i]);
    if (axis == nullptr || axis->stride != stride) return false;
    stride *= axis->extent;
  }
  return true;
}

std::set<int> labels_of(const Term& a, const Term& b) {
  std::set<int> labels;
  for (const Term* term : {&a, &b})
    for (const Axis& axis : term->axes) labels.insert(axis.label);
  return labels;
}

Term contiguous_term(int tensor, const Labels& order, const Term& like) {
  Term term{tensor, {}};
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const int64_t extent = like.find(order[i])->extent;
    term.axes.insert(term.axes.begin(), {order[i], extent, stride});
    stride *= extent;
  }
  return term;
}

Term add_copy(EinsumPlan* plan, int* tensors, const Term& term, const Labels& order) {
  EinsumStep step;
  step.a = term.tensor;
  for (int label : order) step.view.push_back(term.find(label)->extent, term.find(label)->stride);
  step.elements = step.view.size();
  plan->steps.push_back(std::move(step));
  return contiguous_term((*tensors)++, order, term);
}

Term add_pair(EinsumPlan* plan, int* tensors, const Term& a, const Term& b, const std::set<int>& needed,
              const Labels& output, bool last) {
  const Groups g = group(a, b, needed);
  if (is_product(g, a))
    return add_product(plan, tensors, a, b, ordered(concatenate(g.batch, g.left, g.right), output), g.summed);
  return add_gemm(plan, tensors, a, b, choose_layout(a, b, needed, output, last));
}

}  // namespace cuvil::plan
