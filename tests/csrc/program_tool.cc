// Reads jobs from standard input, one directive a line, and prints one line for each: "ok <facts>" or "error
// <message>".
//   input <dtype number> <d0,d1,...>   code <instruction>   output <index>   aligned 0|1   sm <10 * major + minor>
//   sms <multiprocessors>   image <file>   source <file>   end
// Parses and plans the program; compiles it when `sm` is given, and writes the image or the source where asked.
#include <fstream>
#include <iostream>
#include <sstream>

#include "core/error.h"
#include "jit/codegen.h"
#include "jit/compiler.h"

namespace {

struct Job {
  std::vector<cuvil::DType> dtypes;
  std::vector<cuvil::Dims> shapes;
  std::vector<std::string> code;
  std::vector<int64_t> outputs;
  bool aligned = true;
  int sm = 0, sms = 132;
  std::string image, source;
};

cuvil::Dims parse_dims(const std::string& text) {
  cuvil::Dims dims;
  std::istringstream in(text);
  for (std::string d; std::getline(in, d, ',');) dims.push_back(std::stoll(d));
  return dims;
}

void save(const std::string& path, const char* data, size_t size) {
  if (!path.empty()) std::ofstream(path, std::ios::binary).write(data, static_cast<std::streamsize>(size));
}

std::string perform(const Job& job) {
  using namespace cuvil::jit;
  const Program program = parse_program(job.code, job.outputs, job.dtypes);
  std::vector<std::string> again;
  for (const Instr& instr : program.code) again.push_back(to_string(instr));
  if (!(parse_program(again, job.outputs, job.dtypes) == program)) return "error the text form does not round-trip";
  const Plan plan = make_plan(program, job.shapes, job.aligned, {job.sm ? job.sm : 90, job.sms, size_t{60} << 20});
  std::ostringstream out;
  out << "ok shape=" << plan.shape.to_string();
  if (plan.count == 0) return out.str();
  const Specialisation& s = plan.spec;
  out << " vector=" << s.vector << " unroll=" << s.unroll << " rank=" << s.rank << " rows=" << s.rows
      << " wide=" << s.wide << " stream=" << s.stream << " blocks=" << plan.blocks << " access=";
  for (Access a : s.access) out << static_cast<int>(a);
  out << " params=";
  for (uint64_t word : plan.params) out << word << ",";
  const std::string source = generate(program, s);
  save(job.source, source.data(), source.size());
  if (job.sm) {
    const std::vector<char> image = compile(source, target_for(job.sm));
    save(job.image, image.data(), image.size());
    out << " image=" << image.size();
  }
  return out.str();
}

}  // namespace

int main() {
  Job job;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string key;
    in >> key;
    std::string rest;
    std::getline(in >> std::ws, rest);
    if (key == "input") {
      const size_t space = rest.find(' ');
      job.dtypes.push_back(static_cast<cuvil::DType>(std::stoi(rest)));
      job.shapes.push_back(parse_dims(space == std::string::npos ? "" : rest.substr(space + 1)));
    } else if (key == "code") {
      job.code.push_back(rest);
    } else if (key == "output") {
      job.outputs.push_back(std::stoll(rest));
    } else if (key == "aligned") {
      job.aligned = rest == "1";
    } else if (key == "sm") {
      job.sm = std::stoi(rest);
    } else if (key == "sms") {
      job.sms = std::stoi(rest);
    } else if (key == "image") {
      job.image = rest;
    } else if (key == "source") {
      job.source = rest;
    } else if (key == "end") {
      std::string line_out;
      try {
        line_out = perform(job);
      } catch (const cuvil::Error& e) {
        line_out = std::string("error ") + e.what();
        for (char& c : line_out)
          if (c == '\n') c = '|';
      }
      std::cout << line_out << std::endl;
      job = Job{};
    }
  }
}
