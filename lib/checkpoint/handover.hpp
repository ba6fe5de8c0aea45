#pragma once
/// Bytes of a checkpoint on their way from the thread that checks them to those that put them where
/// they belong, so that the disk is read once.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::checkpoint {

/// One thread checks, and offers each piece of a file; any number of others take what they want of
/// it meanwhile. Nobody waits for one side that has gone: close() and end() see to that.
class Handover {
 public:
  /// Of the files that are checker `checker`'s own, of `checkers` (files_of()).
  Handover(int checker, int checkers) : checker_(checker), checkers_(checkers) {}
  int checker() const { return checker_; }
  int checkers() const { return checkers_; }

  /// Bytes [begin, end) of a file of the checkpoint.
  struct Want {
    std::string file;
    std::uint64_t begin = 0, end = 0;
    /// Takes bytes [begin + offset, begin + offset + bytes.size()), on one of the threads in
    /// serve(), several parts at a time. Pieces end at multiples of 8 bytes, or with the file. Of a
    /// file that is read again, because it could not be read, everything is taken again.
    std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)> take;
  };

  /// What is wanted, all of it; to be called once. Until then the checker waits with its first
  /// piece. False if nothing will be offered: close() was called, or nothing is wanted.
  bool expect(std::vector<Want> wants);
  /// Takes what is offered until the check has ended. Calls `idle` when there is nothing to take,
  /// and waits when that is false: it has nothing left to do. Throws what `take` and `idle` throw,
  /// and Stopped; then nobody takes anything any more.
  void serve(const std::function<bool()>& idle);
  /// From now on nobody takes anything: the checker goes on alone. Waits for nobody.
  void close();
  /// Whether every byte that is wanted was offered, and taken.
  bool is_complete() const;

  /// The check has ended, well or not: nothing more comes.
  void end();

  /// A piece that may be taken as long as this lives; its end waits for those who are at it.
  class Offer {
   public:
    /// Pieces of a file come in order, from its beginning on. Null: nobody wants anything.
    Offer(Handover* handover, std::string_view file, std::uint64_t begin,
          std::span<const std::byte> piece);
    ~Offer();
    Offer(const Offer&) = delete;
    Offer& operator=(const Offer&) = delete;

   private:
    Handover* handover_;
  };

 private:
  struct FileWants {
    std::vector<Want> wants;    // ascending by their beginnings
    std::size_t first = 0;      // of them that may end behind what was offered
    std::uint64_t end = 0;      // of the last wanted byte
    std::uint64_t offered = 0;  // bytes from its beginning on
  };
  /// A part of the piece that is offered.
  struct Task {
    const Want* want;
    std::uint64_t offset;
    std::span<const std::byte> bytes;
  };

  void offer(const std::string& file, std::uint64_t begin, std::span<const std::byte> piece);
  void finish_offer();
  void take_next(std::unique_lock<std::mutex>& lock);
  void close_locked();

  int checker_, checkers_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_expected_ = false, is_closed_ = false, has_ended_ = false;
  bool has_lost_ = false;  // something that nobody took
  std::map<std::string, FileWants> files_;
  std::deque<Task> tasks_;
  int taking_ = 0;  // tasks that threads are at
};

}  // namespace llmtrain::checkpoint
