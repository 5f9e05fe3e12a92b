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

// A graph by names. Values are small integers unless they begin with "f" (data) or "s_" (small floats), constants when
// they begin with "c".
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
    n.movable = output[0] != 'f';
    n.floats = output.rfind("s_", 0) == 0;
    for (const std::string& f : flags) {
      if (f == "shape") n.cpu_output[0] = true;
      if (f == "foreign") n.supported = false;
      if (f.rfind("cpu", 0) == 0) n.cpu_input[static_cast<size_t>(std::stoi(f.substr(3)))] = true;
    }
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i][0] == 'f' && !n.cpu_input[i] && !n.cpu_output[0]) n.movable = false;
    names_.push_back(name);
    nodes_.push_back(n);
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
    reshape_chain(g).node("reshape", {"f_x", "t"}, "f_y", {"cpu1"}).node("where", {"m", "f_x"}, "f_z");
    g.expect("another user wants a part of it on the GPU: copied there", {"gather", "mul", "concat"});
  }
  {
    Graph g;
    reshape_chain(g).node("reshape", {"f_x", "t"}, "f_y", {"cpu1"}).node("add", {"m", "ids"}, "n");
    g.expect("more arithmetic with a graph input", {"gather", "mul", "concat", "add"});
  }
  {
    Graph g;
    g.node("equal", {"ids", "c_0"}, "e").node("where", {"e", "f_x", "f_z"}, "f_y");
    g.expect("integers of a graph input, used on the GPU", {});
  }
  {
    Graph g;
    g.node("cast", {"target"}, "t").node("reshape", {"f_x", "t"}, "f_y", {"cpu1"});
    g.expect("a graph input that is a shape", {"cast"});
  }
  {
    Graph g;
    g.node("unsqueeze", {"mask"}, "u").node("shape", {"f_x"}, "s", {"shape"}).node("gather", {"s", "c_0"}, "d");
    g.node("expand", {"u", "d"}, "e", {"cpu1"}).node("cast", {"e"}, "f_e");
    g.expect("a mask expanded to a computed shape goes to the GPU, the shape does not", {"gather"});
  }
  {
    Graph g;
    g.node("shape", {"f_x"}, "s", {"shape"}).node("gather", {"s", "c_0"}, "d");
    g.node("slice", {"c_positions", "d"}, "p", {"cpu1"}).node("expand", {"p", "d"}, "e", {"cpu1"});
    g.node("embed", {"f_table", "e"}, "f_y");
    g.expect("positions cut from a constant: only the length is on the host", {"gather"});
  }
  {
    Graph g;
    g.node("shape", {"f_x"}, "s", {"shape"}).node("range", {"c_0", "s", "c_1"}, "r", {"cpu0", "cpu1", "cpu2"});
    g.node("gather", {"f_table", "r"}, "f_y");
    g.expect("position ids: the kernel reads the length on the host and writes to the GPU", {});
  }
  {
    Graph g;
    g.node("shape", {"f_x"}, "s", {"shape"}).node("range", {"c_0", "s", "c_1"}, "r", {"cpu0", "cpu1", "cpu2"});
    g.node("reshape", {"f_x", "r"}, "f_y", {"cpu1"}).node("gather", {"f_table", "r"}, "f_z");
    g.expect("the same, also wanted on the host: a copy to the GPU, which nobody waits for", {"range"});
  }
  {
    Graph g;
    g.node("shape", {"f_x"}, "s", {"shape"}).node("cast", {"s"}, "s_f").node("scale", {"s_f", "c_2"}, "s_g");
    g.node("back", {"s_g"}, "t").node("resize", {"f_x", "t"}, "f_y", {"cpu1"});
    g.expect("a size computed in floats", {"cast", "scale", "back"});
  }
  {
    Graph g;
    g.node("other", {"f_x"}, "s_a", {"foreign"}).node("neg", {"s_a"}, "s_b").node("exp", {"s_b"}, "s_c");
    g.expect("small floats that no shape went into", {});
  }
  {
    Graph g;
    g.node("log", {"f_x"}, "f_l").node("shape", {"f_x"}, "s", {"shape"}).node("cut", {"f_l"}, "s_x");
    g.node("reshape", {"s_x", "s"}, "s_y", {"cpu1"}).node("loss", {"s_y"}, "f_z", {"foreign"});
    g.expect("small floats of the GPU reshaped for another provider's node: that may not be its last word", {});
  }
  {
    Graph g;
    g.node("shape", {"f_x"}, "s", {"shape"}).node("fill", {"s"}, "s_a", {"cpu0"}).node("scale", {"s_a", "c_2"}, "s_b");
    g.node("back", {"s_b"}, "t").node("resize", {"f_x", "t"}, "f_y", {"cpu1"});
    g.expect("floats made from a shape alone", {"fill", "scale", "back"});
  }
  {
    Graph g;
    g.node("shape", {"f_x"}, "s", {"shape"}).node("gather", {"s", "c_0"}, "d").node("mul", {"d", "f_x"}, "f_y");
    g.expect("one copy either way: the small node stays where its data is", {"gather"});
  }
  {
    Graph g;
    g.node("argmax", {"f_x"}, "a").node("add", {"a", "c_1"}, "b").node("reshape", {"f_x", "b"}, "f_y", {"cpu1"});
    g.expect("integers from GPU data stay there until the last moment", {});
  }
  {
    Graph g;
    g.node("nms", {"f_x"}, "n", {"foreign"}).node("slice", {"n", "c_0"}, "i").node("gather", {"f_x", "i"}, "f_y");
    g.expect("a node of another provider, its result used on the GPU", {});
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
    reshape_chain(g).node("reshape", {"f_x", "t"}, "f_y", {"cpu1"}).node("other", {"", "s"}, "f_o", {"cpu1"});
    g.expect("absent inputs", {"gather", "mul", "concat"});
  }
  {
    Graph g;
    g.node("nms", {"f_x"}, "n", {"foreign"}).node("shape", {"n"}, "s", {"shape"});
    g.node("gather", {"s", "c_0"}, "d").node("reshape", {"f_x", "d"}, "f_y", {"cpu1"});
    g.expect("the shape of something that is on the host", {"shape", "gather"});
  }
  {
    Graph g;
    g.node("fold", {"c_1", "c_2"}, "t").node("reshape", {"f_x", "t"}, "f_y", {"cpu1"});
    g.expect("constants alone, used on the host", {"fold"});
  }
  {
    Graph g;  // deep enough to overflow a stack, long enough to show a quadratic solver
    g.node("shape", {"f_x"}, "v0", {"shape"});
    std::vector<std::string> all;
    for (int i = 0; i < 50000; ++i) {
      all.push_back("n" + std::to_string(i));
      g.node(all.back(), {"v" + std::to_string(i), "c_1"}, "v" + std::to_string(i + 1));
    }
    g.node("reshape", {"f_x", "v50000"}, "f_y", {"cpu1"}).expect("a long chain", all);
  }
  Graph().expect("an empty graph", {});
  std::puts("ok");
}
