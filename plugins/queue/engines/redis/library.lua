-- The functions of the engine `redis`; Python puts the first line, which names the library.
--
-- Theory of operation. A call names one physical queue by the common beginning of its keys, all of
-- which have one hash tag. Behind it stand:
--
--   :s          hash: next, earliest, messages, bytes, stored, clock, nonce; ahead: seconds by which
--               its time is ahead of the server's clock, where that was set back
--   :i          hash: what is known of a message without its payload, by offset; see `INFO`
--   :d          hash: the message as Python has encoded it, by offset
--   :o          sorted set: offsets from `earliest` on whose messages have left
--   :w, :wo     sorted sets: messages whose delay is not over, by its end and by offset
--   :k          hash: newest offset of each key, in a queue that keeps the last
--   :g          hash: record of each group by its identifier
--   :ids:m, :ids:t  in a cluster, claims of what was stored, as identifiers are kept elsewhere
--   :claims:m, :claims:t  a part of the queue's identifiers, which need not be those of its messages
--               The field '' of `:m` is a clock of its own; see `attend`
--   :c:PROGRAM  hash: answers of a program's newest calls, by the call's number modulo RING
--
-- and for each group of kind `lease`, behind its identifier:
--
--   :u          sorted set: offsets below the cursor that are not settled
--   :v          sorted set: of these, those that became visible again
--   :l, :d      sorted sets: of these, leased and delayed ones, by the end of lease or delay
--   :h          hash: receive count and nonce of the newest receive, by offset
--   :q          sorted set: of an ordered group, key, zero byte and offset of each of `:u` with a
--               key, so that a range by text holds a key's messages in their order
--
-- What is not settled below the cursor is in `:u`; what lies behind the cursor is not settled. In an
-- ordered group, one that is in none of `:v`, `:l` and `:d` waits for an earlier one of its key.

local function call(...) return redis.call(...) end
local STEP = 2000      -- messages that one call removes at most
local LOOK = 5000      -- messages that one receive looks at
local LANES = 100000   -- messages of a group that may wait for earlier ones of their key
local MANY = 500       -- messages that one command concerns at most
local AHEAD = 64       -- messages of which a receive asks at a time
local INFO = '<ddddI4BHc0'
local RING = 256       -- calls of a program whose answers are kept
local KEPT = 3600      -- seconds for which they are kept

local function text(number) return string.format('%.17g', number) end

-- Returns an offset or a number of messages as a command has it. The server does the same to each
-- number of a command, each time, and takes twice as long.
local function whole(number) return string.format('%d', number) end

local function list_of(from, past)
  local offsets = {}
  for offset = from, past - 1 do offsets[#offsets + 1] = whole(offset) end
  return offsets
end

-- A command for many messages takes a fraction of the time of one for each. Lua passes some thousands
-- of words at most, so these give the words behind a key some at a time.

-- Returns the sum of the answers.
local function change(name, key, words)
  local sum = 0
  for i = 1, #words, 2 * MANY do
    sum = sum + call(name, key, unpack(words, i, math.min(i + 2 * MANY - 1, #words)))
  end
  return sum
end

-- Returns the answers behind each other.
local function ask(name, key, words)
  if #words == 0 then return words end
  if #words <= 2 * MANY then return call(name, key, unpack(words)) end
  local found = {}
  for i = 1, #words, 2 * MANY do
    for _, one in ipairs(call(name, key, unpack(words, i, math.min(i + 2 * MANY - 1, #words)))) do
      found[#found + 1] = one
    end
  end
  return found
end

-- Groups are read when they are asked for first: not every call needs them.
local PART = {__index = function(p, name)
  if name ~= 'groups' then return nil end
  local groups = {}
  local all = call('HGETALL', p.base .. ':g')
  for i = 1, #all, 2 do groups[all[i]] = cmsgpack.unpack(all[i + 1]) end
  rawset(p, name, groups)
  return groups
end}

-- Returns the time that a function is to take: what it is given, or the server's where that is ''.
local function time_of(given)
  if given ~= '' then return tonumber(given) end
  local t = call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

local function open(base, given)
  local s = call('HMGET', base .. ':s', 'next', 'earliest', 'messages', 'bytes', 'stored', 'clock',
    'nonce', 'keeps', 'ahead')
  if not s[1] then return nil end
  local p = setmetatable({
    base = base, next = tonumber(s[1]), earliest = tonumber(s[2]), messages = tonumber(s[3]),
    bytes = tonumber(s[4]), stored = tonumber(s[5]), nonce = tonumber(s[7]), keeps = s[8],
  }, PART)
  -- Where the server's clock was set back, time goes on from where it was.
  local time, reached = time_of(given), tonumber(s[6])
  p.ahead = tonumber(s[9] or 0)
  if time + p.ahead < reached then
    p.ahead = reached - time
    call('HSET', base .. ':s', 'ahead', text(p.ahead))
  end
  p.now = time + p.ahead
  p.holes = p.next - p.earliest - p.messages
  p.delayed = call('ZCARD', base .. ':w')
  while p.delayed > 0 do
    local due = call('ZRANGEBYSCORE', base .. ':w', '-inf', text(p.now), 'LIMIT', 0, 1000)
    if #due == 0 then break end
    call('ZREM', base .. ':w', unpack(due))
    call('ZREM', base .. ':wo', unpack(due))
    p.delayed = p.delayed - #due
  end
  return p
end

local function close(p)
  call('HSET', p.base .. ':s', 'next', whole(p.next), 'earliest', whole(p.earliest),
    'messages', whole(p.messages), 'bytes', whole(p.bytes), 'stored', whole(p.stored),
    'clock', text(p.now), 'nonce', whole(p.nonce))
end

local function save(p, gid)
  call('HSET', p.base .. ':g', gid, cmsgpack.pack(p.groups[gid]))
end

local function info_of(p, offset)
  local raw = call('HGET', p.base .. ':i', offset)
  if not raw then return nil end
  local clock, due, expires, wall, size, flags, key = struct.unpack(INFO, raw)
  return {clock = clock, key = flags % 2 == 1 and key or nil}
end

local function key_of(raw)
  local _, _, _, _, _, flags, key = struct.unpack(INFO, raw)
  return flags % 2 == 1 and key or nil
end

-- Calls that are repeated. A program that has lost its connection does not know whether a call was
-- carried out. It repeats the call under the same number, and gets the answer of the first.

local UNKNOWN = {err = 'PENSTOCK unknown: the answer of a repeated call is not kept any more'}

-- Returns the key of a program's answers, and what is kept of this call's, which is repeated or asked
-- for.
local function kept(base, program, number, is_asked)
  local key = base .. ':c:' .. program
  local found = call('HGET', key, number % RING)
  local values = found and {cmsgpack.unpack(found)} or {-1}
  if values[1] == tonumber(number) then
    -- Since Redis 7.2 a WAIT is for what its own connection has written.
    if not is_asked then call('HSET', key, number % RING, found) end
    return key, values
  end
  return key, nil, values[1] > tonumber(number), not found
end

local function keep(key, number, is_first, ...)
  call('HSET', key, number % RING, cmsgpack.pack(tonumber(number), ...))
  -- A long value makes the server keep a table: of short ones alone it looks through all of them.
  if is_first then call('HSET', key, 'long', string.rep(' ', 1000)) end
  if is_first or number % 16 == 0 then call('EXPIRE', key, KEPT) end
end

-- What groups are done with.

local function member(key, offset) return key .. '\0' .. string.format('%016.0f', offset) end

local function head_of(k, key)
  local found = call('ZRANGEBYLEX', k .. ':q', '[' .. key .. '\0', '(' .. key .. '\1',
    'LIMIT', 0, 1)[1]
  return found and tonumber(string.sub(found, -16))
end

local function before_in_lane(k, key, offset)
  local found = call('ZREVRANGEBYLEX', k .. ':q', '(' .. member(key, offset), '[' .. key .. '\0',
    'LIMIT', 0, 1)[1]
  return found and tonumber(string.sub(found, -16))
end

-- Takes messages out of a group; the next ones of their keys may then be received.
-- offsets: as text; infos: of each, false where the message is gone. Both may have messages that the
-- group has not got. Returns how many it had.
local function forget(p, gid, offsets, infos)
  local k = p.base .. ':' .. gid
  local n = change('ZREM', k .. ':u', offsets)
  if n == 0 then return 0 end
  for _, set in ipairs({':l', ':d', ':v'}) do change('ZREM', k .. set, offsets) end
  change('HDEL', k .. ':h', offsets)
  if not p.groups[gid].ordered then return n end
  local heads = {}
  for i, offset in ipairs(offsets) do
    local key = infos[i] and key_of(infos[i])
    if key then
      heads[key] = heads[key] or head_of(k, key)
      call('ZREM', k .. ':q', member(key, tonumber(offset)))
    end
  end
  for key, head in pairs(heads) do
    local following = head_of(k, key)
    if following and following ~= head and not call('ZSCORE', k .. ':l', following)
        and not call('ZSCORE', k .. ':d', following) then
      call('ZADD', k .. ':v', following, following)
    end
  end
  return n
end

-- Notes that a message has left: no message is the newest of its key, if it was.
local function forget_newest(p, offset, key)
  local newest = p.keeps and call('HGET', p.base .. ':k', key)
  if newest and tonumber(newest) == offset then call('HDEL', p.base .. ':k', key) end
end

-- Goes on from offsets whose messages have left. It asks for few of them, then for more: behind the
-- earliest message there may be thousands that it does not come to.
local function advance(p)
  local key, most = p.base .. ':o', 1
  while p.holes > 0 do
    local some = call('ZRANGEBYSCORE', key, p.earliest, '+inf', 'LIMIT', 0, most)
    local n = 0
    while some[n + 1] and tonumber(some[n + 1]) == p.earliest + n do n = n + 1 end
    if n > 0 then call('ZREM', key, unpack(some, 1, n)) end
    p.holes = p.holes - n
    p.earliest = p.earliest + n
    if n < most then return end
    most = math.min(2 * most, MANY)
  end
end

-- Removes messages from the queue. offsets: as text, each once; infos: of each, where that is known;
-- is_done: whether all groups are done with them, or whoever waits. Returns how many there were.
local function leave_all(p, offsets, infos, is_done)
  local there, raws, gone = {}, {}, {}
  for i, raw in ipairs(infos or ask('HMGET', p.base .. ':i', offsets)) do
    local offset = offsets[i]
    if raw then
      there[#there + 1], raws[#raws + 1] = offset, raw
      local _, _, _, _, size, flags, key = struct.unpack(INFO, raw)
      local encoded = flags > 1 and size + math.floor(flags / 2)
        or call('HSTRLEN', p.base .. ':d', offset)
      p.bytes = p.bytes - size
      p.stored = p.stored - #raw - encoded
      if flags % 2 == 1 then forget_newest(p, tonumber(offset), key) end
    end
  end
  if #there == 0 then return 0 end
  p.messages = p.messages - #there
  change('HDEL', p.base .. ':i', there)
  change('HDEL', p.base .. ':d', there)
  if p.delayed > 0 then
    p.delayed = p.delayed - change('ZREM', p.base .. ':w', there)
    change('ZREM', p.base .. ':wo', there)
  end
  if not is_done then
    for gid, g in pairs(p.groups) do
      if g.kind == 'l' then forget(p, gid, there, raws) end
    end
  end
  local earliest = p.earliest
  for _, offset in ipairs(there) do
    if tonumber(offset) == p.earliest then
      p.earliest = p.earliest + 1
    else
      gone[#gone + 1], gone[#gone + 2] = offset, offset
      p.holes = p.holes + 1
    end
  end
  change('ZADD', p.base .. ':o', gone)
  if p.earliest > earliest then advance(p) end
  return #there
end

-- Removes a message from the queue, whoever waits for it.
local function leave(p, offset) return leave_all(p, {whole(offset)}) == 1 end

-- Returns those of some messages that all groups are done with, and what is known of these.
-- but: a group that is.
local function done_by_all(p, offsets, infos, but)
  if next(p.groups) == nil then return {}, {} end
  for gid, g in pairs(p.groups) do
    if gid ~= but and #offsets > 0 then
      local waits = g.kind == 'l' and ask('ZMSCORE', p.base .. ':' .. gid .. ':u', offsets) or {}
      local some, raws = {}, infos and {}
      for i, offset in ipairs(offsets) do
        if tonumber(offset) < g.at and not waits[i] then
          some[#some + 1] = offset
          if infos then raws[#some] = infos[i] end
        end
      end
      offsets, infos = some, raws
    end
  end
  return offsets, infos
end

-- Removes from a range what all groups are done with; returns where it must go on, or -1.
local function sweep(p, from, to)
  from = math.max(from, p.earliest)
  local lowest = nil
  for _, g in pairs(p.groups) do lowest = math.min(lowest or g.at, g.at) end
  to = math.min(to, p.next, lowest or 0)
  local last = math.min(to, from + STEP)
  for first = from, last - 1, MANY do
    local done = done_by_all(p, list_of(first, math.min(first + MANY, last)))
    leave_all(p, done, nil, true)
  end
  return last < to and last or -1
end

-- Removes everything below an offset; returns how many messages, and whether that was all.
local function cut(p, below)
  local n = 0
  while p.earliest < below do
    if n == STEP then return n, 0 end
    if leave(p, p.earliest) then n = n + 1 else p.earliest = p.earliest + 1 end
  end
  return n, 1
end

-- Telling.

local function existing(p, from)
  from = math.max(from, p.earliest)
  if from >= p.next then return 0 end
  local holes = p.holes > 0 and call('ZCOUNT', p.base .. ':o', from, '+inf') or 0
  return p.next - from - holes
end

-- Returns the first ends in a sorted set of deadlines, each followed by how many it has.
local function ends_of(key)
  local found = {}
  local at = '-inf'
  for _ = 1, 8 do
    local one = call('ZRANGEBYSCORE', key, at, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if #one == 0 then break end
    found[#found + 1], found[#found + 2] = one[2], call('ZCOUNT', key, one[2], one[2])
    at = '(' .. one[2]
  end
  return found
end

local function group_told(p, gid)
  local g = p.groups[gid]
  local at = math.max(g.at, p.earliest)
  local floor, waiting, leased, delayed, unseen, lease_ends, delay_ends =
    at, existing(p, at), 0, 0, 0, {}, {}
  if g.kind == 'l' then
    local k = p.base .. ':' .. gid
    local first = call('ZRANGE', k .. ':u', 0, 0)[1]
    if first then
      floor = math.max(tonumber(first), p.earliest)
      waiting = waiting + call('ZCARD', k .. ':u')
      leased = call('ZCARD', k .. ':l')
      if leased > 0 then lease_ends = ends_of(k .. ':l') end
      delayed = call('ZCARD', k .. ':d')
      if delayed > 0 then delay_ends = ends_of(k .. ':d') end
    end
    if p.delayed > 0 then unseen = call('ZCOUNT', p.base .. ':wo', at, '+inf') end
  end
  return {gid, floor, waiting, leased, delayed, unseen, text(g.used), lease_ends, delay_ends}
end

-- Returns what Python keeps of a physical queue. gid: of one group; nil for all; '' for none.
local function told(p, gid)
  local oldest = p.messages > 0 and info_of(p, p.earliest)
  local groups = {}
  if not gid then
    for each, _ in pairs(p.groups) do groups[#groups + 1] = group_told(p, each) end
  elseif gid ~= '' then
    groups[1] = group_told(p, gid)
  end
  return {
    text(p.now), p.next, p.earliest, p.messages, p.bytes, p.stored,
    oldest and text(oldest.clock) or '', p.delayed > 0 and ends_of(p.base .. ':w') or {},
    gid and 0 or 1, groups,
  }
end

-- Tells other programs that messages may have become visible. A user who may not use the channel can
-- do everything else.
local function publish(p, program)
  redis.pcall('PUBLISH', p.base, program)
end

local GONE = {err = 'PENSTOCK gone'}
local NO_GROUP = {err = 'PENSTOCK nogroup'}

-- Physical queues.

local function create(keys)
  if call('EXISTS', keys[1] .. ':s') == 0 then
    call('HSET', keys[1] .. ':s', 'next', 0, 'earliest', 0, 'messages', 0, 'bytes', 0,
      'stored', 0, 'clock', 0, 'nonce', 0)
  end
  return 'OK'
end

local function drop_group_keys(base, gid)
  local k = base .. ':' .. gid
  call('UNLINK', k .. ':u', k .. ':v', k .. ':l', k .. ':d', k .. ':h', k .. ':q')
end

local function delete(keys)
  local base = keys[1]
  for _, gid in ipairs(call('HKEYS', base .. ':g')) do drop_group_keys(base, gid) end
  call('UNLINK', base .. ':s', base .. ':i', base .. ':d', base .. ':o', base .. ':w',
    base .. ':wo', base .. ':k', base .. ':g',
    base .. ':ids:m', base .. ':ids:t')
  return 'OK'
end

-- Answers where a message would be stored: the server refuses it as it does `append`.
local function probe(keys)
  return call('EXISTS', keys[1] .. ':s') == 1 and 'OK' or GONE
end

-- argv: the next offset that a program was told, the program, and the number of its last append that
-- was answered ('' for none). Returns whether the server still has what it has told then.
local function verify(keys, argv)
  local next_offset = call('HGET', keys[1] .. ':s', 'next')
  if not next_offset then return 1 end  -- it was deleted
  if tonumber(next_offset) < tonumber(argv[1]) then return 0 end
  if argv[3] == '' then return 1 end
  local _, values, is_late = kept(keys[1], argv[2], argv[3], true)
  return (values or is_late) and 1 or 0
end

local function look(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  return {told(p)}
end

-- Windows of deduplication identifiers, and the time for which a group is not used, do not count the
-- time for which no program could ask: their clock goes on while a program runs.

-- Returns such a clock and the seconds that it leaves out from now on. is_back: a program is there
-- again, and the time since one was there is left out.
local function attend(key, given, is_back)
  local time = time_of(given)
  local stored = call('HGET', key .. ':m', '') or ''
  local seen, away = string.match(stored, '^(%S+) (%S+)$')
  seen, away = tonumber(seen or time), tonumber(away or 0)
  local left_out = (is_back or time < seen) and time - seen or 0  -- below 0: it was set back
  call('HSET', key .. ':m', '', text(time) .. ' ' .. text(away + left_out))
  return time - away - left_out, left_out
end

-- argv: now, and whether a program is there again. Returns the seconds that are left out for that.
local function attend_again(keys, argv)
  if call('EXISTS', keys[1] .. ':m') == 0 then return '0' end
  local _, left_out = attend(keys[1], argv[1], argv[2] == '1')
  return text(left_out)
end

-- Returns the offset up to which a deduplication identifier is known.
local function stored_before(key, id, now, window)
  local at = call('ZSCORE', key .. ':t', id)
  if not at or tonumber(at) + window <= now then return nil end
  return call('HGET', key .. ':m', id)
end

-- argv: now, program, number of the call, number of the physical queue, window, delay, keeps_last,
-- max_messages, max_bytes ('' for none), age of messages that may leave for new ones ('' for any),
-- then for each message: head, key, topic, identifier, encoded.
local function append(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local base, ids = keys[1], keys[2]
  local answers, before, is_late, is_first = kept(base, argv[2], argv[3])
  if before then
    local offsets = before[2]
    if type(offsets) == 'number' then
      offsets = {}
      for i = 1, before[3] do offsets[i] = before[2] + i - 1 end
    end
    return {told(p), offsets, before[4], before[5], before[6]}
  end
  if is_late then return UNKNOWN end
  local number, window, delay = argv[4], tonumber(argv[5]), tonumber(argv[6])
  local ids_clock
  local keeps_last = argv[7] == '1'
  local first = p.next
  local offsets, duplicates = {}, {}
  local n_kept, n_dropped = 0, 0
  local infos, bodies = {}, {}
  -- Stores what is in hand, before anything else looks for it.
  local function write()
    change('HSET', base .. ':i', infos)
    change('HSET', base .. ':d', bodies)
    infos, bodies = {}, {}
  end
  if keeps_last and not p.keeps then
    for offset = p.earliest, p.next - 1 do
      local info = info_of(p, offset)
      if info and info.key then
        local before = call('HGET', base .. ':k', info.key)
        if before and leave(p, tonumber(before)) then n_kept = n_kept + 1 end
        call('HSET', base .. ':k', info.key, offset)
      end
    end
    call('HSET', base .. ':s', 'keeps', 1)
    p.keeps = '1'
  elseif p.keeps and not keeps_last then
    call('HDEL', base .. ':s', 'keeps')
    call('UNLINK', base .. ':k')
    p.keeps = false
  end
  for i = 11, #argv, 5 do
    local age, own_delay, interval, wall, size, flags = struct.unpack('<ddddI4B', argv[i])
    local key, topic, id, encoded = argv[i + 1], argv[i + 2], argv[i + 3], argv[i + 4]
    local before = nil
    if id ~= '' then
      ids_clock = ids_clock or attend(ids, argv[1])
      if flags % 2 == 1 then before = stored_before(ids, id, ids_clock, window) end
    end
    if before then
      duplicates[#duplicates + 1] = #offsets
      local where, offset = string.match(before, '^(%d+) (%d+)$')
      offsets[#offsets + 1] = where == number and tonumber(offset) or -1
    else
      local offset = p.next
      p.next = offset + 1
      local clock = p.now - age
      local due = clock + (own_delay >= 0 and own_delay or delay)
      local has_key = flags >= 2 and 1 or 0
      local before = #encoded - size
      local info = struct.pack(INFO, clock, due, interval >= 0 and clock + interval or 0, wall,
        size, has_key + (before < 128 and 2 * before or 0), #key, key) .. topic
      local name = whole(offset)
      local at = #infos
      infos[at + 1], infos[at + 2] = name, info
      bodies[at + 1], bodies[at + 2] = name, encoded
      p.messages = p.messages + 1
      p.bytes = p.bytes + size
      p.stored = p.stored + #info + #encoded
      if due > p.now then
        call('ZADD', base .. ':w', text(due), name)
        call('ZADD', base .. ':wo', name, name)
        p.delayed = p.delayed + 1
      end
      if id ~= '' then
        call('HSET', ids .. ':m', id, number .. ' ' .. name)
        call('ZADD', ids .. ':t', text(ids_clock), id)
      end
      if keeps_last and has_key == 1 then
        write()
        local older = call('HGET', base .. ':k', key)
        if older and leave(p, tonumber(older)) then n_kept = n_kept + 1 end
        call('HSET', base .. ':k', key, offset)
      end
      offsets[#offsets + 1] = offset
    end
  end
  write()
  local max_messages = tonumber(argv[8]) or math.huge
  local max_bytes = tonumber(argv[9]) or math.huge
  local before = argv[10] ~= '' and p.now - tonumber(argv[10])
  while p.messages > 1 and (p.messages > max_messages or p.bytes > max_bytes) do
    local oldest = before and info_of(p, p.earliest)
    if oldest and oldest.clock > before then break end
    if leave(p, p.earliest) then n_dropped = n_dropped + 1 else p.earliest = p.earliest + 1 end
  end
  close(p)
  keep(answers, argv[3], is_first, #duplicates == 0 and first or offsets, #offsets, duplicates,
    n_kept, n_dropped)
  if #offsets > #duplicates then publish(p, argv[2]) end
  local gid = ''
  if n_kept + n_dropped > 0 or p.delayed > 0 then gid = nil end
  return {told(p, gid), offsets, duplicates, n_kept, n_dropped}
end

-- argv: now, window, number of the physical queue, a word that no other claim has, then for each
-- message: identifier, whether it may be a repeat. Answers of each to which physical queue its
-- identifier belongs, and by which word; a repeat of the call gets the same.
local function claim_ids(keys, argv)
  -- Nothing ends the windows of a queue that is gone. Its physical queue of this slot tells.
  local base = string.match(keys[1], '^(.*):claims$')
  if base and call('EXISTS', base .. ':s') == 0 then return GONE end
  local now = attend(keys[1], argv[1])
  local answer = {}
  for i = 5, #argv, 2 do
    local claim = argv[3] .. ' ' .. argv[4] .. '.' .. i
    local before = argv[i + 1] == '1' and stored_before(keys[1], argv[i], now, tonumber(argv[2]))
    if not before then
      call('HSET', keys[1] .. ':m', argv[i], claim)
      call('ZADD', keys[1] .. ':t', text(now), argv[i])
    end
    answer[#answer + 1] = before or claim
  end
  return answer
end

-- The same where the server's memory is full. A claim is small, and its message may be stored on
-- another server; so claims may take what is left for them, up to a tenth of `maxmemory`.
local function claim_ids_full(keys, argv)
  local memory = call('INFO', 'memory')
  local function bytes(name) return tonumber(string.match(memory, '\n' .. name .. ':(%d+)')) end
  local used = bytes('used_memory') - bytes('mem_not_counted_for_evict')
  if used > 1.1 * bytes('maxmemory') then
    return {err = 'OOM a tenth more than maxmemory is used'}
  end
  return claim_ids(keys, argv)
end

local function forget_ids(keys, argv)
  for _, id in ipairs(argv) do
    call('HDEL', keys[1] .. ':m', id)
    call('ZREM', keys[1] .. ':t', id)
  end
  return 'OK'
end

-- argv: now, window. Ends windows that are over; returns how many, 1,000 at most.
local function expire_ids(keys, argv)
  if call('EXISTS', keys[1] .. ':m') == 0 then return 0 end
  local now = attend(keys[1], argv[1])
  local old = call('ZRANGEBYSCORE', keys[1] .. ':t', '-inf', text(now - tonumber(argv[2])),
    'LIMIT', 0, 1000)
  if #old > 0 then
    call('HDEL', keys[1] .. ':m', unpack(old))
    call('ZREM', keys[1] .. ':t', unpack(old))
  end
  return #old
end

local function delete_ids(keys)
  call('UNLINK', keys[1] .. ':m', keys[1] .. ':t')
  return 'OK'
end

-- argv: now, start, end, most messages, most bytes, and whether the payload is wanted.
-- Answers offset, info and encoded message of each.
local function range(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local offset = math.max(tonumber(argv[2]), p.earliest)
  local stop = math.min(tonumber(argv[3]), p.next)
  local left, bytes = tonumber(argv[4]), tonumber(argv[5])
  local rows = {}
  local looked = 0
  while offset < stop and left > 0 and bytes > 0 and looked < LOOK do
    local past = math.min(stop, offset + math.min(MANY, LOOK - looked))
    local names, there, infos, n_bytes = list_of(offset, past), {}, {}, 0
    for i, info in ipairs(ask('HMGET', p.base .. ':i', names)) do
      looked = looked + 1
      offset = offset + 1
      if info then
        there[#there + 1], infos[#infos + 1] = names[i], info
        local _, _, _, _, size = struct.unpack(INFO, info)
        n_bytes = n_bytes + size
      end
      -- A message takes its payload's bytes at least.
      if #there == left or argv[6] == '1' and n_bytes >= bytes then break end
    end
    local bodies = argv[6] == '1' and ask('HMGET', p.base .. ':d', there) or {}
    for i, name in ipairs(there) do
      if bytes <= 0 then
        offset = tonumber(there[i - 1]) + 1
        break
      end
      local encoded = bodies[i] or ''
      rows[#rows + 1], rows[#rows + 2], rows[#rows + 3] = tonumber(name), infos[i], encoded
      left = left - 1
      bytes = bytes - #encoded
    end
  end
  return {told(p, ''), offset, rows}
end

-- argv: now, offset below which all leaves, or '' and the age in seconds at which it does.
local function cut_below(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local n, is_all = 0, 1
  if argv[2] ~= '' then
    n, is_all = cut(p, math.min(tonumber(argv[2]), p.next))
  else
    local before = p.now - tonumber(argv[3])
    while p.earliest < p.next do
      local info = info_of(p, p.earliest)
      if info and info.clock >= before then break end
      if n == STEP then is_all = 0 break end
      if info then leave(p, p.earliest) n = n + 1 else p.earliest = p.earliest + 1 end
    end
  end
  close(p)
  return {told(p), n, is_all}
end

-- argv: now, then offsets. Returns how many messages there were.
local function remove(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local n = 0
  for i = 2, #argv do if leave(p, tonumber(argv[i])) then n = n + 1 end end
  close(p)
  return {told(p), n}
end

local function sweep_range(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local more = sweep(p, tonumber(argv[2]), tonumber(argv[3]))
  close(p)
  return {told(p), more}
end

-- Groups.

-- argv: now, then for each group: identifier, kind, ordered, start (`earliest`, `latest` or an
-- offset), epoch. Those that are there are left alone.
local function add_groups(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local had_groups = next(p.groups) ~= nil
  for i = 2, #argv, 5 do
    local gid, start = argv[i], argv[i + 3]
    if not p.groups[gid] then
      local at = p.earliest
      if start == 'latest' then at = p.next
      elseif start ~= 'earliest' then at = math.max(p.earliest, math.min(tonumber(start), p.next))
      end
      p.groups[gid] = {
        kind = argv[i + 1], ordered = argv[i + 2] == '1', at = at, used = p.now,
        epoch = tonumber(argv[i + 4]),
      }
      save(p, gid)
    end
  end
  local more = -1
  if not had_groups then more = sweep(p, p.earliest, p.next) end
  close(p)
  return {told(p), more}
end

local function drop_group(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local more = -1
  if p.groups[argv[2]] then
    p.groups[argv[2]] = nil
    call('HDEL', p.base .. ':g', argv[2])
    drop_group_keys(p.base, argv[2])
    more = sweep(p, p.earliest, p.next)
  end
  close(p)
  return {told(p), more}
end

-- argv: now, identifier, ordered. Leases end where the order is another one.
local function order_group(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local g = p.groups[argv[2]]
  if not g then return NO_GROUP end
  local ordered = argv[3] == '1'
  if g.ordered ~= ordered then
    g.ordered = ordered
    local k = p.base .. ':' .. argv[2]
    call('UNLINK', k .. ':l', k .. ':d', k .. ':q')
    for _, offset in ipairs(call('ZRANGE', k .. ':u', 0, -1)) do
      call('ZADD', k .. ':v', offset, offset)
      local info = ordered and info_of(p, offset)
      if info and info.key then call('ZADD', k .. ':q', 0, member(info.key, tonumber(offset))) end
    end
    save(p, argv[2])
  end
  close(p)
  return {told(p, argv[2])}
end

-- argv: now, identifier, seconds since the group was used.
local function touch(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  if not p.groups[argv[2]] then return NO_GROUP end
  local g = p.groups[argv[2]]
  g.used = math.max(g.used, p.now - tonumber(argv[3]))
  save(p, argv[2])
  close(p)
  return {told(p, argv[2])}
end

-- argv: now, identifier, offset.
local function commit(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local g = p.groups[argv[2]]
  if not g then return NO_GROUP end
  local offset = tonumber(argv[3])
  if offset > p.next then return {err = 'PENSTOCK offset ' .. text(p.next)} end
  local from = g.at
  g.at = math.max(g.at, offset)
  g.used = p.now
  save(p, argv[2])
  local more = sweep(p, from, g.at)
  close(p)
  return {told(p, argv[2]), more}
end

-- argv: now, identifier, offset, epoch.
local function seek(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local g = p.groups[argv[2]]
  if not g then return NO_GROUP end
  drop_group_keys(p.base, argv[2])
  g.at = math.max(p.earliest, math.min(tonumber(argv[3]), p.next))
  g.epoch = tonumber(argv[4])
  g.used = p.now
  save(p, argv[2])
  local more = sweep(p, p.earliest, g.at)
  close(p)
  publish(p, '')
  return {told(p, argv[2]), more}
end

-- Receiving.

-- Makes messages visible whose lease or delay is over.
local function expire(p, gid)
  local k = p.base .. ':' .. gid
  for _, key in ipairs({k .. ':l', k .. ':d'}) do
    while true do
      local over = call('ZRANGEBYSCORE', key, '-inf', text(p.now), 'LIMIT', 0, 1000)
      if #over == 0 then break end
      call('ZREM', key, unpack(over))
      local shown = {}
      for _, offset in ipairs(over) do
        shown[#shown + 1] = offset
        shown[#shown + 1] = offset
      end
      call('ZADD', k .. ':v', unpack(shown))
    end
  end
end

-- MQTT 5.0, 4.7: whether a topic filter matches a topic.
local function levels(topic)
  local found = {}
  for level in string.gmatch(topic .. '/', '([^/]*)/') do found[#found + 1] = level end
  return found
end

local function matches(filter, topic)
  local wanted, given = levels(filter), levels(topic)
  if string.sub(topic, 1, 1) == '$' and (wanted[1] == '#' or wanted[1] == '+') then return false end
  for i, level in ipairs(wanted) do
    if level == '#' then return #given >= i - 1 end
    if not given[i] or (level ~= '+' and level ~= given[i]) then return false end
  end
  return #wanted == #given
end

local function takes(filters, topic)
  for _, filter in ipairs(filters) do if matches(filter, topic) then return true end end
  return false
end

-- Returns the count and the nonce of the newest receive.
local function received_in(found)
  if not found then return 0, -1 end
  local count, nonce = string.match(found, '^(%d+) (-?%d+)$')
  return tonumber(count), tonumber(nonce)
end

-- Answers a receive that is repeated: what it has leased and is leased still.
local function leased_before(p, gid, before)
  local k = p.base .. ':' .. gid
  local nonce, dead, is_dead = before[2], before[6], {}
  local function add(rows, offset, count)
    local info = call('HGET', p.base .. ':i', offset)
    if not info then return end
    for _, one in ipairs({tonumber(offset), count, info, call('HGET', p.base .. ':d', offset)}) do
      rows[#rows + 1] = one
    end
  end
  local rows, dead_rows, offsets = {}, {}, {}
  for _, offset in ipairs(dead) do is_dead[offset] = true end
  for _, offset in ipairs(call('ZRANGE', k .. ':l', 0, -1)) do
    local count, at = received_in(call('HGET', k .. ':h', offset))
    if at == nonce then
      if is_dead[offset] then add(dead_rows, offset, count)
      else offsets[#offsets + 1] = {tonumber(offset), offset, count} end
    end
  end
  table.sort(offsets, function(a, b) return a[1] < b[1] end)
  for _, one in ipairs(offsets) do add(rows, one[2], one[3]) end
  return {told(p, gid), nonce, before[3], before[4], before[5], rows, dead_rows}
end

-- argv: now, program, number of the call, identifier, most messages, most bytes, visibility
-- timeout, most receives (0 for any number), topic filters in JSON ('' for all), seconds for which a
-- dead letter is held.
-- Answers what `told` says, nonce, whether there may be more, filtered, expired, then offset, count,
-- info and encoded message of each received message, and the same of dead letters.
local function lease(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local gid = argv[4]
  local g = p.groups[gid]
  if not g then return NO_GROUP end
  local answers, before, is_late, is_first = kept(p.base, argv[2], argv[3])
  if before then return leased_before(p, gid, before) end
  if is_late then return UNKNOWN end
  local k = p.base .. ':' .. gid
  local most, max_bytes = tonumber(argv[5]), tonumber(argv[6])
  local deadline = text(p.now + tonumber(argv[7]))
  local max_receives = tonumber(argv[8])
  local filters = argv[9] ~= '' and cjson.decode(argv[9]) or nil
  p.nonce = (p.nonce + 1) % 4294967296
  g.used = p.now
  expire(p, gid)
  local dead, last_of_key = {}, {}
  local got, counts, got_infos = {}, {}, {}
  local n, n_bytes, n_looked, filtered, expired = 0, 0, 0, 0, 0
  local is_full = false
  local mark = ' ' .. whole(p.nonce)
  local first_mark = '1' .. mark
  local below, leased, marks, seen, done, done_infos = {}, {}, {}, {}, {}, {}

  -- Stores what was decided, before anything else looks for it.
  local function write()
    change('ZADD', k .. ':u', below)
    change('ZADD', k .. ':l', leased)
    change('HSET', k .. ':h', marks)
    change('ZREM', k .. ':v', seen)
    forget(p, gid, done, done_infos)
    local offsets, infos = done_by_all(p, done, done_infos, gid)
    leave_all(p, offsets, infos, true)
    below, leased, marks, seen, done, done_infos = {}, {}, {}, {}, {}, {}
  end

  -- Looks at one message; false where it must be looked at again.
  -- name: its offset as text; raw: its info; received: count and nonce of its newest receive.
  local function consider(offset, name, raw, received, is_new)
    n_looked = n_looked + 1
    if not raw then
      seen[#seen + 1] = name
      return true
    end
    local _, due, expires, _, size, flags, key, rest = struct.unpack(INFO, raw)
    local is_over = expires > 0 and p.now >= expires
    local is_other = filters and not takes(filters, string.sub(raw, rest))
    if is_other or is_over then
      if is_other then filtered = filtered + 1 else expired = expired + 1 end
      -- One that the cursor meets was never among those below.
      if is_new then g.at = math.max(g.at, offset + 1) end
      done[#done + 1], done_infos[#done_infos + 1] = name, raw
      if g.ordered then write() end
      return true
    end
    local is_due = not is_new or due <= p.now
    local count = is_new and 0 or received_in(received)
    if is_due and max_receives > 0 and count >= max_receives then
      seen[#seen + 1] = name
      local at = #leased
      leased[at + 1], leased[at + 2] = text(p.now + tonumber(argv[10])), name
      marks[at + 1], marks[at + 2] = name, whole(count) .. mark
      for _, one in ipairs({offset, count, raw, call('HGET', p.base .. ':d', name)}) do
        dead[#dead + 1] = one
      end
      return true
    end
    if is_due and n > 0 and n_bytes + size > max_bytes then
      is_full = true
      return false
    end
    local is_in_lane = g.ordered and flags % 2 == 1
    if is_new then
      local at = #below
      below[at + 1], below[at + 2] = name, name
      if is_in_lane then call('ZADD', k .. ':q', 0, member(key, offset)) end
      if not is_due then
        call('ZADD', k .. ':d', text(due), name)
        return true
      end
    end
    if is_in_lane then
      local before = before_in_lane(k, key, offset)
      if before and before ~= last_of_key[key] then
        seen[#seen + 1] = name
        return true
      end
      last_of_key[key] = offset
    end
    n = n + 1
    n_bytes = n_bytes + size
    count = math.min(count + 1, 65535)
    if not is_new then seen[#seen + 1] = name end
    local at = #leased
    leased[at + 1], leased[at + 2] = deadline, name
    marks[at + 1], marks[at + 2] = name, count == 1 and first_mark or whole(count) .. mark
    got[n], counts[n], got_infos[n] = name, count, raw
    return true
  end

  local function wants() return n < most and n_looked < LOOK and not is_full end

  while wants() do
    local again = call('ZRANGE', k .. ':v', 0, math.min(AHEAD, most - n) - 1)
    if #again == 0 then break end
    local infos = call('HMGET', p.base .. ':i', unpack(again))
    local received = call('HMGET', k .. ':h', unpack(again))
    for i, name in ipairs(again) do
      if not wants() then break end
      if not consider(tonumber(name), name, infos[i], received[i], false) then break end
    end
    write()
  end
  g.at = math.max(g.at, p.earliest)
  while wants() and g.at < p.next do
    local from = g.at
    local names = list_of(from, math.min(from + AHEAD, from + most - n, p.next))
    local infos = call('HMGET', p.base .. ':i', unpack(names))
    for i, name in ipairs(names) do
      if g.ordered and g.at % 64 == 0 and call('ZCARD', k .. ':q') >= LANES then is_full = true end
      if not wants() or not consider(g.at, name, infos[i], false, true) then break end
      g.at = math.max(g.at, from + i)
    end
  end
  write()
  save(p, gid)
  close(p)
  local more = n_looked >= LOOK and 1 or 0
  local rows = {}
  for i, body in ipairs(ask('HMGET', p.base .. ':d', got)) do
    local at = 4 * i
    rows[at - 3], rows[at - 2], rows[at - 1], rows[at] = tonumber(got[i]), counts[i], got_infos[i], body
  end
  if #rows > 0 or #dead > 0 then
    local offsets = {}
    for i = 1, #dead, 4 do offsets[#offsets + 1] = whole(dead[i]) end
    keep(answers, argv[3], is_first, p.nonce, more, filtered, expired, offsets)
  end
  return {told(p, gid), p.nonce, more, filtered, expired, rows, dead}
end

-- argv: now, program, number of the call, identifier, epoch, action (`ack`, `nack`, `extend`,
-- `dead`, `undo`, `show`), seconds, then count and nonce of a receive, how many of its messages are
-- meant, and their offsets, for each receive. Answers the indexes of those messages that are stale;
-- `show` does nothing but to hold the messages, and answers offset, count, info and encoded message
-- of each.
local function settle(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local gid, action, seconds = argv[4], argv[6], tonumber(argv[7])
  local g = p.groups[gid]
  if not g then return NO_GROUP end
  local answers, before, is_late, is_first = kept(p.base, argv[2], argv[3])
  if before then return {told(p, gid), before[2], {}} end
  if is_late then return UNKNOWN end
  local k = p.base .. ':' .. gid
  g.used = p.now
  expire(p, gid)
  local stale, rows, done = {}, {}, {}
  local is_other = tonumber(argv[5]) ~= g.epoch
  local leaves, is_held = action == 'ack' or action == 'dead', action == 'extend' or action == 'undo'
  local offsets, counts, wanted, over = {}, {}, {}, {}
  local i, n = 8, 0
  while argv[i] do
    local count, mark, past = argv[i], argv[i] .. ' ' .. argv[i + 1], i + 3 + tonumber(argv[i + 2])
    for at = i + 3, past - 1 do
      n = n + 1
      offsets[n], counts[n], wanted[n] = argv[at], count, mark
    end
    i = past
  end
  local received = ask('HMGET', k .. ':h', offsets)
  local waits = ask('ZMSCORE', k .. ':u', offsets)
  local leased = is_held and ask('ZMSCORE', k .. ':l', offsets)
  for at, offset in ipairs(offsets) do
    local count = counts[at]
    local is_current = not is_other and received[at] == wanted[at] and waits[at]
      and not over[offset]
    if not is_current or (is_held and not leased[at]) then
      stale[#stale + 1] = at - 1
    elseif leaves then
      done[#done + 1] = offset
      over[offset] = true  -- it may be named twice
    elseif action == 'extend' then
      call('ZADD', k .. ':l', text(p.now + seconds), offset)
    elseif action == 'show' then
      call('ZREM', k .. ':d', offset)
      call('ZREM', k .. ':v', offset)
      call('ZADD', k .. ':l', text(p.now + seconds), offset)
      rows[#rows + 1] = offset
      rows[#rows + 1] = count
      rows[#rows + 1] = call('HGET', p.base .. ':i', offset)
      rows[#rows + 1] = call('HGET', p.base .. ':d', offset)
    else
      call('ZREM', k .. ':l', offset)
      call('ZREM', k .. ':d', offset)
      call('ZREM', k .. ':v', offset)
      if action == 'undo' then
        over[offset] = true
        call('HSET', k .. ':h', offset, whole(tonumber(count) - 1) .. ' -1')
      end
      if seconds > 0 then
        call('ZADD', k .. ':d', text(p.now + seconds), offset)
      else
        call('ZADD', k .. ':v', offset, offset)
      end
    end
  end
  if #done > 0 then
    local infos = g.ordered and ask('HMGET', p.base .. ':i', done)
    forget(p, gid, done, infos)
    done, infos = done_by_all(p, done, infos, gid)
    leave_all(p, done, infos, true)
  end
  expire(p, gid)
  save(p, gid)
  close(p)
  -- To hold messages once more does no harm.
  if action ~= 'show' then keep(answers, argv[3], is_first, stale) end
  if action == 'nack' or action == 'undo' or g.ordered then publish(p, argv[2]) end
  return {told(p, gid), stale, rows}
end

-- The catalogue: one hash of all logical queues, whose values are JSON that Python alone reads.

-- argv: name, the value that is to be there ('' for none), the new value.
-- Returns the value that is there, which is the new one where it was taken, now or before.
local function put(keys, argv)
  local found = call('HGET', keys[1] .. ':q', argv[1]) or ''
  if found == argv[3] then return {1, found} end
  if found ~= argv[2] then return {0, found} end
  call('HSET', keys[1] .. ':q', argv[1], argv[3])
  return {1, argv[3]}
end

-- argv: a secret and a format, which are taken where there are none, and an older format, which is
-- replaced.
local function begin(keys, argv)
  call('HSETNX', keys[1] .. ':m', 'secret', argv[1])
  call('HSETNX', keys[1] .. ':m', 'format', argv[2])
  return call('HMGET', keys[1] .. ':m', 'secret', 'format')
end

local function list(keys)
  return {call('HGET', keys[1] .. ':m', 'secret') or '', call('HGETALL', keys[1] .. ':q')}
end

-- Tombstones: another hash, which says of deleted queues by incarnation what keys they had, as long
-- as there may be some on any node.

-- argv: name, the value that is to be there, its incarnation, and the tombstone that it becomes, which
-- is another one in each delete. Returns as `put` does. Name and value are '' for a queue that was not
-- put here.
local function delete_entry(keys, argv)
  local queues, tombstones = keys[1] .. ':q', keys[1] .. ':t'
  local found = call('HGET', queues, argv[1]) or ''
  if found == argv[2] then
    call('HSET', tombstones, argv[3], argv[4])
    call('HDEL', queues, argv[1])
    return {1, ''}
  end
  -- A repeat is told by its tombstone: the name may be another queue's by now.
  if found == '' or call('HGET', tombstones, argv[3]) == argv[4] then return {1, ''} end
  return {0, found}
end

local function tombstones(keys)
  return call('HGETALL', keys[1] .. ':t')
end

local function drop_tombstone(keys, argv)
  call('HDEL', keys[1] .. ':t', argv[1])
  return 'OK'
end

-- While the library is loaded, the server offers nothing but this. What makes room or gives messages
-- away is done also where the server's memory is full.

local function register(name, callback, flag)
  redis.register_function{function_name = PREFIX .. name, callback = callback, flags = {flag}}
end

register('append', append)
register('claim_ids', claim_ids)
register('claim_ids_full', claim_ids_full, 'allow-oom')
register('create', create)
register('probe', probe)
register('attend', attend_again, 'allow-oom')
register('verify', verify, 'no-writes')
register('put', put)
register('begin', begin)
register('add_groups', add_groups)
register('delete_entry', delete_entry, 'allow-oom')
register('drop_tombstone', drop_tombstone, 'allow-oom')
register('delete', delete, 'allow-oom')
register('forget_ids', forget_ids, 'allow-oom')
register('expire_ids', expire_ids, 'allow-oom')
register('delete_ids', delete_ids, 'allow-oom')
register('cut_below', cut_below, 'allow-oom')
register('remove', remove, 'allow-oom')
register('sweep', sweep_range, 'allow-oom')
register('drop_group', drop_group, 'allow-oom')
register('order_group', order_group, 'allow-oom')
register('touch', touch, 'allow-oom')
register('commit', commit, 'allow-oom')
register('seek', seek, 'allow-oom')
register('lease', lease, 'allow-oom')
register('settle', settle, 'allow-oom')
register('look', look, 'allow-oom')
register('range', range, 'allow-oom')
register('list', list, 'no-writes')
register('tombstones', tombstones, 'no-writes')
