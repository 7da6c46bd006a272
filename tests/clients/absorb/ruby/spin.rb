# redlock-rb on one lock: spin.rb redlock PORT KEY CLIENTS ROUNDS LEASE CONNECTIONS
#
# See ../run for the arguments and the output. Each client has a connection of its own. Its socket timeout is the
# library's own, 100 ms.

require "digest/sha1"
require "redlock"

# Ruby loads it on its first use, and threads that use it first at the same time fail.
Digest::SHA1

HOLD = 0.010
# An acquisition that takes longer never comes.
PATIENCE = 60

_, port, key = ARGV
clients, rounds, lease = ARGV[3..5].map(&:to_i)

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

$timeouts = 0
$inside = 0
waits, holds, wrong = Queue.new, Queue.new, Queue.new

# Returns whether the error, or what it wraps, is a socket timeout. redlock-rb 2 reports those of all servers in one.
def timeout?(error)
  [error, *(error.errors if error.respond_to?(:errors))].any? { |one| one.class.name =~ /TimeoutError/ }
end

def acquire(manager, name, lease)
  deadline = now + PATIENCE
  while now < deadline
    begin
      lock = manager.lock(name, lease)
      return lock if lock
    rescue StandardError => error
      raise unless timeout?(error)
      $timeouts += 1
    end
  end
  raise "an acquisition never came"
end

ready, start = Queue.new, Queue.new
threads = clients.times.map do |i|
  Thread.new do
    manager = Redlock::Client.new(["redis://127.0.0.1:#{port}"])
    # Opens the connection, and loads the scripts.
    manager.unlock(acquire(manager, "#{key}-warm-#{i}", lease))
    ready << true
    start.pop
    rounds.times do
      asked = now
      lock = acquire(manager, key, lease)
      got = now
      $inside += 1
      wrong << "two clients hold the lock" if $inside != 1
      sleep HOLD
      $inside -= 1
      holds << now - got
      waits << got - asked
      manager.unlock(lock)
    end
  rescue StandardError => error
    wrong << error.inspect
    ready << true
  end
end
clients.times { ready.pop }
$timeouts = 0

# Marks the part of Redis's MONITOR that counts.
marker = TCPSocket.new("127.0.0.1", port)
mark = lambda do |text|
  marker.write("*2\r\n$4\r\nECHO\r\n$#{text.bytesize}\r\n#{text}\r\n")
  2.times { marker.gets }
end
mark.call("begin #{key}")
begun = now
clients.times { start << true }
threads.each { |thread| thread.join(2 * PATIENCE) }
elapsed = now - begun
mark.call("end #{key}")

abort "wrong: #{wrong.pop}" unless wrong.empty?
abort "wrong: an acquisition never came" if waits.size < clients * rounds
sorted = Array.new(waits.size) { 1000 * waits.pop }.sort
at = ->(part) { sorted[[(part * sorted.size).to_i, sorted.size - 1].min].round(2) }
hold = Array.new(holds.size) { holds.pop }.sum
puts format("p50=%s p99=%s time=%.2f elapsed=%.2f timeouts=%d",
            at.call(0.5), at.call(0.99), elapsed / hold, 1000 * elapsed, $timeouts)
