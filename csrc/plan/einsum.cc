#include "plan/einsum.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "plan/einsum_pair.h"

namespace cuvil::plan {
namespace {

using Labels = std::vector<int>;

// The label of each dimension of a term, the ellipsis being `dims` wide.
Labels expand_term(const EinsumTerm& term, int dims) {
  Labels labels = term.before;
  for (int i = dims - 1; i >= 0; --i) labels.push_back(kEllipsis + i);
  labels.insert(labels.end(), term.after.begin(), term.after.end());
  return labels;
}

class Lowering {
 public:
  Lowering(const EinsumEquation& e, const std::vector<Dims>& shapes) {
    std::vector<Labels> labels;
    int widest = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const EinsumTerm& term = e.inputs[i];
      const int named = static_cast<int>(term.before.size() + term.after.size()), rank = shapes[i].rank();
      require(term.ellipsis ? rank >= named : rank == named, "Einsum: input ", i, " has shape ", shapes[i].to_string(),
              " for a term of ", named, " labels", term.ellipsis ? " and an ellipsis" : "");
      labels.push_back(expand_term(term, rank - named));
      widest = std::max(widest, rank - named);
      for (int d = 0; d < rank; ++d) note_extent(labels[i][static_cast<size_t>(d)], shapes[i][d], i);
    }
    for (int label : expand_term(e.output, e.output.ellipsis ? widest : 0)) {
      plan_.output.push_back(extent_.at(label));
      if (extent_.at(label) != 1) output_.push_back(label);
    }
    tensors_ = static_cast<int>(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i) terms_.push_back(make_term(static_cast<int>(i), labels[i], shapes[i]));
  }

  EinsumPlan run() {
    if (plan_.output.size() == 0) return plan_;
    for (const auto& [label, extent] : extent_) plan_.zero = plan_.zero || extent == 0;
    if (plan_.zero) return plan_;
    for (size_t i = 0; i < terms_.size(); ++i) sum_own_labels(i);
    while (terms_.size() > 1) combine_cheapest();
    finish();
    return plan_;
  }

 private:
  void note_extent(int label, int64_t extent, size_t input) {
    int64_t& known = extent_.emplace(label, 1).first->second;
    require(extent == known || extent == 1 || known == 1, "Einsum: a dimension of input ", input, " has extent ",
            extent, ", another one of its label ", known);
    if (known == 1) known = extent;
  }

  // Dimensions of 1 say nothing; those of one label are walked together: a diagonal.
  Term make_term(int tensor, const Labels& labels, const Dims& shape) const {
    Term term{tensor, {}};
    const Dims strides = contiguous_strides(shape);
    for (int d = 0; d < shape.rank(); ++d) {
      const int label = labels[static_cast<size_t>(d)];
      if (shape[d] == 1) continue;
      if (Axis* axis = term.find(label))
        axis->stride += strides[d];
      else
        term.axes.push_back({label, shape[d], strides[d]});
    }
    return term;
  }

  // Labels that the output or a term other than i and j has.
  std::set<int> needed_beside(size_t i, size_t j) const {
    std::set<int> needed(output_.begin(), output_.end());
    for (size_t k = 0; k < terms_.size(); ++k) {
      if (k == i || k == j) continue;
      for (const Axis& axis : terms_[k].axes) needed.insert(axis.label);
    }
    return needed;
  }

  // Sums over labels that nothing else has come first: what follows is smaller.
  void sum_own_labels(size_t i) {
    const std::set<int> needed = needed_beside(i, i);
    Labels kept, summed;
    for (const Axis& axis : terms_[i].axes) (needed.count(axis.label) ? kept : summed).push_back(axis.label);
    if (summed.empty()) return;
    Labels order = terms_[i].labels();
    if (!terms_[i].is_contiguous(order)) {  // a diagonal
      order = kept;
      order.insert(order.end(), summed.begin(), summed.end());
      terms_[i] = add_copy(&plan_, &tensors_, terms_[i], order);
    }
    Dims shape;
    std::vector<int64_t> axes;
    for (size_t d = 0; d < order.size(); ++d) {
      shape.push_back(terms_[i].find(order[d])->extent);
      if (!needed.count(order[d])) axes.push_back(static_cast<int64_t>(d));
    }
    EinsumStep step;
    step.kind = EinsumStep::Kind::kReduce;
    step.a = terms_[i].tensor;
    step.reduce = reduce(shape, axes, false, false);
    step.elements = step.reduce.shape.size();
    const Term before = terms_[i];
    terms_[i] = contiguous_term(tensors_++, kept, before);
    plan_.steps.push_back(std::move(step));
  }

  // Of all pairs, the one with the smallest result.
  void combine_cheapest() {
    size_t best_i = 0, best_j = 1;
    std::optional<double> best;
    for (size_t i = 0; i < terms_.size(); ++i) {
      for (size_t j = i + 1; j < terms_.size(); ++j) {
        const std::set<int> needed = needed_beside(i, j), labels = labels_of(terms_[i], terms_[j]);
        double size = 1;
        for (int label : labels)
          if (needed.count(label)) size *= static_cast<double>(extent_.at(label));
        if (!best || size < *best) best = size, best_i = i, best_j = j;
      }
    }
    const Term a = terms_[best_i], b = terms_[best_j];
    const std::set<int> needed = needed_beside(best_i, best_j);
    const Term result = add_pair(&plan_, &tensors_, a, b, needed, output_, terms_.size() == 2);
    terms_.erase(terms_.begin() + static_cast<std::ptrdiff_t>(best_j));
    terms_[best_i] = result;
  }

  // The last term in the output's order; a copy of an input when no step has run yet.
  void finish() {
    if (!plan_.steps.empty() && terms_[0].is_contiguous(output_)) return;
    add_copy(&plan_, &tensors_, terms_[0], output_);
  }

  EinsumPlan plan_;
  std::map<int, int64_t> extent_;
  Labels output_;  // without extents of 1
  std::vector<Term> terms_;
  int tensors_ = 0;
};

}  // namespace

EinsumPlan plan_einsum(const EinsumEquation& equation, const std::vector<Dims>& shapes) {
  require(equation.inputs.size() == shapes.size(), "Einsum: ", shapes.size(), " inputs for ", equation.inputs.size(),
          " terms");
  return Lowering(equation, shapes).run();
}

}  // namespace cuvil::plan
