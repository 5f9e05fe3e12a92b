// Which runs are captured, and which graph goes: every step of small histories.
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <random>
#include <vector>

#include "ep/capture_book.h"

using cuvil::ep::CaptureBook;
using cuvil::ep::kSkipCapture;
using Plan = CaptureBook::Plan;

namespace {

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)

void warm(CaptureBook& book, int id, int runs, int64_t kernels = 5) {
  for (int i = 0; i < runs; ++i) {
    CHECK(book.begin_run(id) == Plan::kWarmUp);
    book.warmed_up(id, kernels, true);
  }
}

void a_graph_needs_its_warm_ups() {
  CaptureBook book(2, 4);
  CHECK(book.begin_run(kSkipCapture) == Plan::kEager);
  warm(book, 0, 1);
  book.warmed_up(0, 5, /*ok=*/false);
  CHECK(book.begin_run(0) == Plan::kWarmUp);
  warm(book, 0, 1);
  CHECK(book.begin_run(0) == Plan::kCapture);
  CHECK(book.begin_run(1) == Plan::kWarmUp);
  CHECK(book.is_complete(0, 5) && !book.is_complete(0, 4) && !book.is_complete(9, 5));
  CHECK(book.captured(0).empty() && book.is_captured(0) && !book.is_captured(1));
  CHECK(book.release(0) && !book.is_captured(0) && !book.release(0));
  CHECK(book.begin_run(0) == Plan::kWarmUp);  // other shapes may come
  warm(book, 0, 2);
  CHECK(book.begin_run(0) == Plan::kCapture);
  book.failed(0);
  CHECK(book.begin_run(0) == Plan::kWarmUp && !book.is_captured(0));
}

// An evicted graph is captured again at its next run: the ops are tuned already.
void an_evicted_graph_is_still_warm() {
  CaptureBook book(3, 1);
  for (const int id : {1, 2}) {
    warm(book, id, 3);
    const std::vector<int> evicted = book.captured(id);
    CHECK(id == 1 ? evicted.empty() : evicted == std::vector<int>{1});
  }
  CHECK(!book.is_captured(1) && book.begin_run(1) == Plan::kCapture);
}

// The limit and the order against a plain list.
void the_least_recently_used_goes(unsigned seed) {
  std::mt19937 random(seed);
  const int limit = 1 + static_cast<int>(random() % 5);
  CaptureBook book(2, limit);
  std::list<int> order;  // least recently used first
  for (int step = 0; step < 2000; ++step) {
    const int id = static_cast<int>(random() % 9);
    if (random() % 20 == 0) {
      const bool known = book.is_captured(id);
      CHECK(book.release(id) == known);
      order.remove(id);
    } else if (book.is_captured(id)) {
      book.replayed(id);
      order.remove(id);
      order.push_back(id);
    } else {
      while (book.begin_run(id) == Plan::kWarmUp) book.warmed_up(id, 1, true);
      const std::vector<int> evicted = book.captured(id);
      order.push_back(id);
      for (const int gone : evicted) {
        CHECK(gone == order.front());
        order.pop_front();
      }
    }
    CHECK(book.size() == order.size() && order.size() <= static_cast<size_t>(limit));
    for (const int held : order) CHECK(book.is_captured(held));
  }
}

}  // namespace

int main() {
  a_graph_needs_its_warm_ups();
  an_evicted_graph_is_still_warm();
  for (unsigned seed = 0; seed < 20; ++seed) the_least_recently_used_goes(seed);
  std::puts("ok");
}
