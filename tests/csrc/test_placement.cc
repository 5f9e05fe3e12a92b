// Which nodes stay on the CPU, on graphs built by hand.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "ep/placement.h"

using cuvil::ep::cpu_preferred;
using cuvil::ep::kAbsent;
using cuvil::ep::PlacementNode;
using cuvil::ep::PlacementValue;

namespace {

// A graph by names. Values are small integers unless they begin with "f" (float data), constants when they begin
// with "c", and graph outputs when marked so.
class Graph {
 public:
  // `flags`: "cpu<i>" input i is wanted on the host, "shape" the output is produced there, "foreign" not ours.
  Graph& node(const std::string& name, const std::vector<std::string>& inputs, const std::string& output,
              const std::vector<std::string>& flags = {}) {
    PlacementNode n;
    n.supported = true;
    for (const std::string& i : inputs) n.inputs.push_back(i.empty() ? kAbsent : id(i));
    n.outputs = {id(output)};
    n.cpu_input.resize(inputs.size());
    n.cpu_output.resize(1);
    n.small_ints = output[0] != 'f';
    for (const std::string& f : flags) {
      if (f == "shape") n.cpu_output[0] = true, n.small_ints = false;
      if (f == "foreign") n.supported = false;
      if (f.rfind("cpu", 0) == 0) n.cpu_input[static_cast<size_t>(std::stoi(f.substr(3)))] = true;
    }
    names_.push_back(name);
    nodes_.push_back(n);
    return *this;
  }
  Graph& output(const std::string& value) {
    values_[static_cast<size_t>(id(value))].unknown_use = true;
    return *this;
  }
  void expect(const char* what, const std::vector<std::string>& on_cpu) {
    const std::vector<bool> got = cpu_preferred(nodes_, values_);
    std::vector<std::string> found;
    for (size_t n = 0; n < got.size(); ++n)
      if (got[n]) found.push_back(names_[n]);
    if (found == on_cpu) return;
    std::fprintf(stderr, "%s: on the CPU:", what);
    for (const std::string& n : found) std::fprintf(stderr, " %s", n.c_str());
    std::fprintf(stderr, "\n");
    std::exit(1);
  }

 private:
  int id(const std::string& value) {
    const auto [it, is_new] = ids_.emplace(value, static_cast<int>(values_.size()));
    if (is_new) {
      PlacementValue v;
      v.constant = value[0] == 'c';
      v.small_ints = value[0] != 'f';
      values_.push_back(v);
    }
    return it->second;
  }
  std::map<std::string, int> ids_;
  std::vector<std::string> names_;
  std::vector<PlacementNode> nodes_;
  std::vector<PlacementValue> values_;
};

Graph& reshape_chain(Graph& g) {
  return g.node("shape", {"f_x"}, "s", {"shape"})
      .node("gather", {"s", "c_0"}, "d")
      .node("mul", {"d", "c_8"}, "m")
      .node("concat", {"m", "c_1"}, "t");
}

}  // namespace

int main() {
  {
    Graph g;
    reshape_chain(g).node("reshape", {"f_x", "t"}, "f_y", {"cpu1"});
    g.expect("a shape computed for a reshape", {"gather", "mul", "concat"});
  }
  {
    Graph g;
    reshape_chain(g).node("reshape", {"f_x", "t"}, "f_y", {"cpu1"}).node("add", {"m", "m2"}, "m3").output("m3");
    g.expect("another user wants it on the device", {"gather", "mul", "concat"});
  }
  {
    Graph g;
    g.node("equal", {"ids", "c_0"}, "e").node("where", {"e", "f_x", "f_z"}, "f_y");
    g.expect("integers of a graph input, used on the device", {});
  }
  {
    Graph g;
    g.node("cast", {"target"}, "t").node("reshape", {"f_x", "t"}, "f_y", {"cpu1"});
    g.expect("a graph input that is a shape", {"cast"});
  }
  {
    Graph g;
    g.node("cast", {"target"}, "t").node("reshape", {"f_x", "t"}, "f_y", {"cpu1"}).node("eq", {"t", "ids"}, "e");
    g.output("e").expect("a graph input used on both sides stays on the device", {});
  }
  {
    Graph g;
    g.node("shape", {"f_x"}, "s", {"shape"}).node("range", {"c_0", "s", "c_1"}, "r", {"cpu0", "cpu1", "cpu2"});
    g.node("gather", {"f_table", "r"}, "f_y");
    g.expect("position ids: the kernel reads the length on the host and writes to the device", {});
  }
  {
    Graph g;
    g.node("shape", {"f_x"}, "s", {"shape"}).node("range", {"c_0", "s", "c_1"}, "r", {"cpu0", "cpu1", "cpu2"});
    g.node("reshape", {"f_x", "r"}, "f_y", {"cpu1"}).node("gather", {"f_table", "r"}, "f_z");
    g.expect("the same, also wanted on the host: one copy either way, none waited for", {"range"});
  }
  {
    Graph g;
    g.node("shape", {"f_x"}, "s", {"shape"}).node("cast", {"s"}, "f_s").node("div", {"f_x", "f_s"}, "f_y");
    g.expect("a float computed from a shape is not shape arithmetic", {});
  }
  {
    Graph g;
    g.node("argmax", {"f_x"}, "a").node("add", {"a", "c_1"}, "b").node("reshape", {"f_x", "b"}, "f_y", {"cpu1"});
    g.expect("integers from device data stay there until the last moment", {});
  }
  {
    Graph g;
    g.node("nms", {"f_x"}, "n", {"foreign"}).node("slice", {"n", "c_0"}, "i").node("gather", {"f_x", "i"}, "f_y");
    g.expect("a node of another provider, its result used on the device", {});
  }
  {
    Graph g;
    g.node("nms", {"f_x"}, "n", {"foreign"})
        .node("slice", {"n", "c_0"}, "i")
        .node("topk", {"f_x", "i"}, "f_y", {"cpu1"});
    g.expect("the same, used on the host", {"slice"});
  }
  {
    Graph g;
    reshape_chain(g).node("reshape", {"f_x", "t"}, "f_y", {"cpu1"}).node("other", {"", "s"}, "o", {"cpu1"}).output("o");
    g.expect("absent inputs, an output of the graph that a kernel makes from host data", {"gather", "mul", "concat"});
  }
  {
    Graph g;
    g.node("fold", {"c_1", "c_2"}, "t").node("reshape", {"f_x", "t"}, "f_y", {"cpu1"});
    g.expect("constants alone, used on the host", {"fold"});
  }
  Graph().expect("an empty graph", {});
  std::puts("ok");
}
