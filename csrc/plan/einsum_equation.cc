#include "plan/einsum_equation.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace cuvil::plan {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

EinsumTerm parse_term(const std::string& text, const std::string& equation) {
  EinsumTerm term;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_letter(text[i])) {
      (term.ellipsis ? term.after : term.before).push_back(text[i]);
      continue;
    }
    require(text.compare(i, 3, "...") == 0, "equation '", equation, "' holds '", text[i],
            "'; letters, '...', ',' and '->' are known");
    require(!term.ellipsis, "equation '", equation, "' has two ellipses in one term");
    term.ellipsis = true;
    i += 2;
  }
  return term;
}

// Labels that occur once, in alphabetical order, behind what the ellipses stand for.
EinsumTerm implicit_output(const std::vector<EinsumTerm>& inputs) {
  EinsumTerm output;
  std::map<int, int> count;
  for (const EinsumTerm& term : inputs) {
    output.ellipsis = output.ellipsis || term.ellipsis;
    for (int label : term.before) ++count[label];
    for (int label : term.after) ++count[label];
  }
  for (const auto& [label, times] : count)
    if (times == 1) (output.ellipsis ? output.after : output.before).push_back(label);
  return output;
}

bool holds(const EinsumTerm& term, int label) {
  return std::count(term.before.begin(), term.before.end(), label) +
             std::count(term.after.begin(), term.after.end(), label) >
         0;
}

void check_output(const EinsumEquation& e, const std::string& equation) {
  std::vector<int> labels = e.output.before;
  labels.insert(labels.end(), e.output.after.begin(), e.output.after.end());
  for (size_t i = 0; i < labels.size(); ++i) {
    const char label = static_cast<char>(labels[i]);
    require(std::count(labels.begin(), labels.end(), labels[i]) == 1, "equation '", equation, "' repeats '", label,
            "' in its output");
    require(std::any_of(e.inputs.begin(), e.inputs.end(), [&](const EinsumTerm& t) { return holds(t, labels[i]); }),
            "equation '", equation, "' has '", label, "' in its output alone");
  }
  const bool ellipsis = std::any_of(e.inputs.begin(), e.inputs.end(), [](const EinsumTerm& t) { return t.ellipsis; });
  require(ellipsis == e.output.ellipsis, "equation '", equation, "' has an ellipsis on one side only");
}

}  // namespace

EinsumEquation parse_einsum(const std::string& equation, int inputs) {
  std::string text;
  std::copy_if(equation.begin(), equation.end(), std::back_inserter(text), [](char c) { return c != ' '; });
  const size_t arrow = text.find("->");
  EinsumEquation e;
  const std::string left = text.substr(0, arrow);
  for (size_t from = 0; from <= left.size();) {
    const size_t comma = std::min(left.find(',', from), left.size());
    e.inputs.push_back(parse_term(left.substr(from, comma - from), equation));
    from = comma + 1;
  }
  require(inputs < 0 || static_cast<int>(e.inputs.size()) == inputs, "equation '", equation, "' has ", e.inputs.size(),
          " input terms for ", inputs, " inputs");
  e.output = arrow == std::string::npos ? implicit_output(e.inputs) : parse_term(text.substr(arrow + 2), equation);
  check_output(e, equation);
  return e;
}

}  // namespace cuvil::plan
