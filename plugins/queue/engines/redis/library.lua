-- The functions of the engine `redis`; Python puts the first line, which names the library.
--
-- Theory of operation. A call names one physical queue by the common beginning of its keys, all of
-- which have one hash tag. Behind it stand:
--
--   :s          hash: next, earliest, messages, bytes, stored, clock, nonce
--   :i          hash: what is known of a message without its payload, by offset; see `info_of`
--   :d          hash: the message as Python has encoded it, by offset
--   :o          sorted set: offsets from `earliest` on whose messages have left
--   :w, :wo     sorted sets: messages whose delay is not over, by its end and by offset
--   :k          hash: newest offset of each key, in a queue that keeps the last
--   :g          hash: record of each group by its identifier
--   :ids:m, :ids:t  in a cluster, claims of what was stored, as identifiers are kept elsewhere
--   :claims:m, :claims:t  a part of the queue's identifiers, which need not be those of its messages
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
local MANY = 500       -- messages that one command removes at most
local INFO = '<ddddI4BHc0'
local RING = 256       -- calls of a program whose answers are kept
local KEPT = 3600      -- seconds for which they are kept

local function text(number) return string.format('%.17g', number) end

local function open(base, given)
  local s = call('HMGET', base .. ':s', 'next', 'earliest', 'messages', 'bytes', 'stored', 'clock',
    'nonce', 'keeps')
  if not s[1] then return nil end
  local p = {
    base = base, next = tonumber(s[1]), earliest = tonumber(s[2]), messages = tonumber(s[3]),
    bytes = tonumber(s[4]), stored = tonumber(s[5]), nonce = tonumber(s[7]), keeps = s[8],
    groups = {},
  }
  if given == '' then
    local t = call('TIME')
    p.now = tonumber(t[1]) + tonumber(t[2]) / 1000000
  else
    p.now = tonumber(given)
  end
  p.now = math.max(p.now, tonumber(s[6]))
  p.holes = call('ZCARD', base .. ':o')
  p.delayed = call('ZCARD', base .. ':w')
  local all = call('HGETALL', base .. ':g')
  for i = 1, #all, 2 do p.groups[all[i]] = cmsgpack.unpack(all[i + 1]) end
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
  call('HSET', p.base .. ':s', 'next', text(p.next), 'earliest', text(p.earliest),
    'messages', text(p.messages), 'bytes', text(p.bytes), 'stored', text(p.stored),
    'clock', text(p.now), 'nonce', text(p.nonce))
end

local function save(p, gid)
  call('HSET', p.base .. ':g', gid, cmsgpack.pack(p.groups[gid]))
end

local function info_of(p, offset)
  local raw = call('HGET', p.base .. ':i', offset)
  if not raw then return nil end
  local clock, due, expires, wall, size, has_key, key, rest = struct.unpack(INFO, raw)
  return {
    raw = raw, clock = clock, due = due, expires = expires, size = size,
    key = has_key == 1 and key or nil, topic = string.sub(raw, rest),
  }
end

-- Calls that are repeated. A program that has lost its connection does not know whether a call was
-- carried out. It repeats the call under the same number, and gets the answer of the first.

local UNKNOWN = {err = 'PENSTOCK unknown: the answer of a repeated call is not kept any more'}

-- Returns the key of a program's answers, and what is kept of this call's.
local function kept(base, program, number)
  local key = base .. ':c:' .. program
  local found = call('HGET', key, number % RING)
  local values = found and {cmsgpack.unpack(found)} or {-1}
  if values[1] == tonumber(number) then return key, values end
  return key, nil, values[1] > tonumber(number), not found
end

local function keep(key, number, is_first, ...)
  call('HSET', key, number % RING, cmsgpack.pack(tonumber(number), ...))
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

-- Takes a message out of a group; the next of its key may then be received.
local function forget(p, gid, offset, key)
  local k = p.base .. ':' .. gid
  if call('ZREM', k .. ':u', offset) == 0 then return false end
  call('ZREM', k .. ':l', offset)
  call('ZREM', k .. ':d', offset)
  call('ZREM', k .. ':v', offset)
  call('HDEL', k .. ':h', offset)
  if p.groups[gid].ordered and key then
    local was_head = head_of(k, key) == offset
    call('ZREM', k .. ':q', member(key, offset))
    local following = was_head and head_of(k, key)
    if following and not call('ZSCORE', k .. ':l', following)
        and not call('ZSCORE', k .. ':d', following) then
      call('ZADD', k .. ':v', following, following)
    end
  end
  return true
end

-- Notes that a message has left: no message is the newest of its key, if it was.
local function forget_newest(p, offset, key)
  local newest = p.keeps and call('HGET', p.base .. ':k', key)
  if newest and tonumber(newest) == offset then call('HDEL', p.base .. ':k', key) end
end

-- Removes a message from the queue, whoever waits for it.
local function leave(p, offset)
  local info = info_of(p, offset)
  if not info then return false end
  p.messages = p.messages - 1
  p.bytes = p.bytes - info.size
  p.stored = p.stored - #info.raw - call('HSTRLEN', p.base .. ':d', offset)
  call('HDEL', p.base .. ':i', offset)
  call('HDEL', p.base .. ':d', offset)
  if info.key then forget_newest(p, offset, info.key) end
  if p.delayed > 0 and call('ZREM', p.base .. ':w', offset) == 1 then
    call('ZREM', p.base .. ':wo', offset)
    p.delayed = p.delayed - 1
  end
  for gid, g in pairs(p.groups) do
    if g.kind == 'l' and offset < g.at then forget(p, gid, offset, info.key) end
  end
  if offset == p.earliest then
    p.earliest = offset + 1
    while p.holes > 0 and call('ZREM', p.base .. ':o', p.earliest) == 1 do
      p.holes = p.holes - 1
      p.earliest = p.earliest + 1
    end
  else
    call('ZADD', p.base .. ':o', offset, offset)
    p.holes = p.holes + 1
  end
  return true
end

local function all_done(p, offset)
  local has_group = false
  for gid, g in pairs(p.groups) do
    has_group = true
    if offset >= g.at then return false end
    if g.kind == 'l' and call('ZSCORE', p.base .. ':' .. gid .. ':u', offset) then return false end
  end
  return has_group
end

-- Removes the earliest messages, which no group of kind `lease` and no delay knows of: some commands
-- for many of them, where `leave` takes six for each.
local function leave_first(p, last)
  local infos, bodies = p.base .. ':i', p.base .. ':d'
  for from = p.earliest, last - 1, MANY do
    local offsets = {}
    for offset = from, math.min(from + MANY, last) - 1 do offsets[#offsets + 1] = offset end
    for i, raw in ipairs(call('HMGET', infos, unpack(offsets))) do
      if raw then
        p.messages = p.messages - 1
        local _, _, _, _, size, has_key, key = struct.unpack(INFO, raw)
        p.bytes = p.bytes - size
        if has_key == 1 then forget_newest(p, offsets[i], key) end
        p.stored = p.stored - #raw - call('HSTRLEN', bodies, offsets[i])
      end
    end
    call('HDEL', infos, unpack(offsets))
    call('HDEL', bodies, unpack(offsets))
  end
  if p.holes > 0 then
    p.holes = p.holes - call('ZREMRANGEBYSCORE', p.base .. ':o', '-inf', last - 1)
  end
  p.earliest = last
  while p.holes > 0 and call('ZREM', p.base .. ':o', p.earliest) == 1 do
    p.holes = p.holes - 1
    p.earliest = p.earliest + 1
  end
end

-- Removes from a range what all groups are done with; returns where it must go on, or -1.
local function sweep(p, from, to)
  from = math.max(from, p.earliest)
  local lowest, leases = nil, p.delayed > 0
  for _, g in pairs(p.groups) do
    lowest = math.min(lowest or g.at, g.at)
    leases = leases or g.kind == 'l'
  end
  to = math.min(to, p.next, lowest or 0)
  local last = math.min(to, from + STEP)
  if not leases and from == p.earliest and from < last then
    leave_first(p, last)
    return last < to and last or -1
  end
  for offset = from, last - 1 do
    if all_done(p, offset) then leave(p, offset) end
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

-- Returns the first ends in a sorted set of deadlines, each with how many it has.
local function ends_of(key)
  local found = {}
  local at = '-inf'
  for _ = 1, 8 do
    local one = call('ZRANGEBYSCORE', key, at, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if #one == 0 then break end
    found[#found + 1] = {one[2], call('ZCOUNT', key, one[2], one[2])}
    at = '(' .. one[2]
  end
  return found
end

local function group_told(p, gid)
  local g = p.groups[gid]
  local at = math.max(g.at, p.earliest)
  local told = {f = at, w = existing(p, at), l = 0, d = 0, u = text(g.used), e = g.epoch}
  if g.kind == 'l' then
    local k = p.base .. ':' .. gid
    local first = call('ZRANGE', k .. ':u', 0, 0)[1]
    told.w = told.w + call('ZCARD', k .. ':u')
    if first then told.f = math.max(tonumber(first), p.earliest) end
    told.l = call('ZCARD', k .. ':l')
    if told.l > 0 then told.x = ends_of(k .. ':l') end
    told.d = call('ZCARD', k .. ':d')
    if told.d > 0 then told.y = ends_of(k .. ':d') end
    told.n = p.delayed > 0 and call('ZCOUNT', p.base .. ':wo', at, '+inf') or 0
  end
  return told
end

-- Returns what Python keeps of a physical queue. gid: of one group; nil for all; '' for none.
local function told(p, gid)
  local oldest = nil
  if p.messages > 0 then oldest = info_of(p, p.earliest) end
  local answer = {
    now = text(p.now), next = p.next, earliest = p.earliest, messages = p.messages,
    bytes = p.bytes, stored = p.stored, oldest = oldest and text(oldest.clock) or nil,
    groups = {},
  }
  if p.delayed > 0 then answer.w = ends_of(p.base .. ':w') end
  for each, _ in pairs(p.groups) do
    if not gid or gid == each then answer.groups[each] = group_told(p, each) end
  end
  if not gid then answer.all = 1 end
  return cjson.encode(answer)
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

local function look(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  return {told(p)}
end

-- Returns the offset up to which a deduplication identifier is known.
local function stored_before(key, id, now, window)
  local at = call('ZSCORE', key .. ':t', id)
  if not at or tonumber(at) + window <= now then return nil end
  return call('HGET', key .. ':m', id)
end

-- argv: now, program, number of the call, number of the physical queue, window, delay, keeps_last,
-- max_messages, max_bytes ('' for none), then for each message: head, key, topic, identifier,
-- encoded.
local function append(keys, argv)
  local p = open(keys[1], argv[1])
  if not p then return GONE end
  local base, ids = keys[1], keys[2]
  local answers, before, is_late, is_first = kept(base, argv[2], argv[3])
  if before then
    local offsets = before[2]
    if type(offsets) == 'number' then
      offsets = {}
      for i = 1, before[3] do offsets[i] = text(before[2] + i - 1) end
    end
    return {told(p), offsets, before[4], before[5], before[6]}
  end
  if is_late then return UNKNOWN end
  local number, window, delay = argv[4], tonumber(argv[5]), tonumber(argv[6])
  local keeps_last = argv[7] == '1'
  local first = p.next
  local offsets, duplicates = {}, {}
  local n_kept, n_dropped = 0, 0
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
  for i = 10, #argv, 5 do
    local age, own_delay, interval, wall, size, flags = struct.unpack('<ddddI4B', argv[i])
    local key, topic, id, encoded = argv[i + 1], argv[i + 2], argv[i + 3], argv[i + 4]
    local before = nil
    if id ~= '' and flags % 2 == 1 then before = stored_before(ids, id, p.now, window) end
    if before then
      duplicates[#duplicates + 1] = #offsets
      local where, offset = string.match(before, '^(%d+) (%d+)$')
      offsets[#offsets + 1] = where == number and offset or '-1'
    else
      local offset = p.next
      p.next = offset + 1
      local clock = p.now - age
      local due = clock + (own_delay >= 0 and own_delay or delay)
      local has_key = flags >= 2 and 1 or 0
      local info = struct.pack(INFO, clock, due, interval >= 0 and clock + interval or 0, wall,
        size, has_key, #key, key) .. topic
      call('HSET', base .. ':i', offset, info)
      call('HSET', base .. ':d', offset, encoded)
      p.messages = p.messages + 1
      p.bytes = p.bytes + size
      p.stored = p.stored + #info + #encoded
      if due > p.now then
        call('ZADD', base .. ':w', text(due), offset)
        call('ZADD', base .. ':wo', offset, offset)
        p.delayed = p.delayed + 1
      end
      if id ~= '' then
        call('HSET', ids .. ':m', id, number .. ' ' .. text(offset))
        call('ZADD', ids .. ':t', text(p.now), id)
      end
      if keeps_last and has_key == 1 then
        local older = call('HGET', base .. ':k', key)
        if older and leave(p, tonumber(older)) then n_kept = n_kept + 1 end
        call('HSET', base .. ':k', key, offset)
      end
      offsets[#offsets + 1] = text(offset)
    end
  end
  local max_messages = tonumber(argv[8]) or math.huge
  local max_bytes = tonumber(argv[9]) or math.huge
  while p.messages > 1 and (p.messages > max_messages or p.bytes > max_bytes) do
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
  local now = tonumber(argv[1])
  if argv[1] == '' then now = tonumber(call('TIME')[1]) end
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

local function forget_ids(keys, argv)
  for _, id in ipairs(argv) do
    call('HDEL', keys[1] .. ':m', id)
    call('ZREM', keys[1] .. ':t', id)
  end
  return 'OK'
end

-- argv: now, window. Ends windows that are over; returns how many, 1,000 at most.
local function expire_ids(keys, argv)
  local now = tonumber(argv[1])
  if argv[1] == '' then now = tonumber(call('TIME')[1]) end
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
    looked = looked + 1
    local info = call('HGET', p.base .. ':i', offset)
    if info then
      local encoded = argv[6] == '1' and call('HGET', p.base .. ':d', offset) or ''
      rows[#rows + 1] = text(offset)
      rows[#rows + 1] = info
      rows[#rows + 1] = encoded
      left = left - 1
      bytes = bytes - #encoded
    end
    offset = offset + 1
  end
  return {told(p, ''), text(offset), rows}
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
  return {told(p), text(more)}
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
  return {told(p), text(more)}
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
  return {told(p), text(more)}
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
  return {told(p, argv[2]), text(more)}
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
  return {told(p, argv[2]), text(more)}
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

local function received_of(k, offset)
  local found = call('HGET', k .. ':h', offset)
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
    for _, one in ipairs({offset, text(count), info, call('HGET', p.base .. ':d', offset)}) do
      rows[#rows + 1] = one
    end
  end
  local rows, dead_rows, offsets = {}, {}, {}
  for _, offset in ipairs(dead) do is_dead[offset] = true end
  for _, offset in ipairs(call('ZRANGE', k .. ':l', 0, -1)) do
    local count, at = received_of(k, offset)
    if at == nonce then
      if is_dead[offset] then add(dead_rows, offset, count)
      else offsets[#offsets + 1] = {tonumber(offset), offset, count} end
    end
  end
  table.sort(offsets, function(a, b) return a[1] < b[1] end)
  for _, one in ipairs(offsets) do add(rows, one[2], one[3]) end
  return {told(p, gid), text(nonce), before[3], before[4], before[5], rows, dead_rows}
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
  p.nonce = (p.nonce + 1) % 65536
  g.used = p.now
  expire(p, gid)
  local rows, dead, last_of_key = {}, {}, {}
  local n, n_bytes, n_looked, filtered, expired = 0, 0, 0, 0, 0
  local is_full = false

  local function done(offset, info)
    if not forget(p, gid, offset, info.key) then
      -- Settled where the cursor meets it: it was never among those below.
      g.at = math.max(g.at, offset + 1)
    end
    if all_done(p, offset) then leave(p, offset) end
  end

  -- Looks at one message; false where it must be looked at again.
  local function consider(offset, is_new)
    n_looked = n_looked + 1
    local info = info_of(p, offset)
    if not info then
      call('ZREM', k .. ':v', offset)
      return true
    end
    if filters and not takes(filters, info.topic) then
      filtered = filtered + 1
      done(offset, info)
      return true
    end
    if info.expires > 0 and p.now >= info.expires then
      expired = expired + 1
      done(offset, info)
      return true
    end
    local is_due = not is_new or info.due <= p.now
    local count = 0
    if is_due then count = received_of(k, offset) end
    if is_due and max_receives > 0 and count >= max_receives then
      call('ZREM', k .. ':v', offset)
      call('ZADD', k .. ':l', text(p.now + tonumber(argv[10])), offset)
      call('HSET', k .. ':h', offset, text(count) .. ' ' .. text(p.nonce))
      for _, one in ipairs({text(offset), text(count), info.raw,
          call('HGET', p.base .. ':d', offset)}) do
        dead[#dead + 1] = one
      end
      return true
    end
    if is_due and n > 0 and n_bytes + info.size > max_bytes then
      is_full = true
      return false
    end
    if is_new then
      call('ZADD', k .. ':u', offset, offset)
      if g.ordered and info.key then call('ZADD', k .. ':q', 0, member(info.key, offset)) end
      if not is_due then
        call('ZADD', k .. ':d', text(info.due), offset)
        return true
      end
    end
    if g.ordered and info.key then
      local before = before_in_lane(k, info.key, offset)
      if before and before ~= last_of_key[info.key] then
        call('ZREM', k .. ':v', offset)
        return true
      end
      last_of_key[info.key] = offset
    end
    n = n + 1
    n_bytes = n_bytes + info.size
    if not is_new then call('ZREM', k .. ':v', offset) end
    call('ZADD', k .. ':l', deadline, offset)
    call('HSET', k .. ':h', offset, text(math.min(count + 1, 65535)) .. ' ' .. text(p.nonce))
    rows[#rows + 1] = text(offset)
    rows[#rows + 1] = text(math.min(count + 1, 65535))
    rows[#rows + 1] = info.raw
    rows[#rows + 1] = call('HGET', p.base .. ':d', offset)
    return true
  end

  local function wants() return n < most and n_looked < LOOK and not is_full end

  while wants() do
    local again = call('ZRANGE', k .. ':v', 0, 99)
    if #again == 0 then break end
    for _, offset in ipairs(again) do
      if not wants() or not consider(tonumber(offset), false) then break end
    end
  end
  g.at = math.max(g.at, p.earliest)
  while wants() and g.at < p.next do
    if g.ordered and g.at % 64 == 0 and call('ZCARD', k .. ':q') >= LANES then break end
    local offset = g.at
    if not consider(offset, true) then break end
    g.at = math.max(g.at, offset + 1)
  end
  save(p, gid)
  close(p)
  local more = n_looked >= LOOK and 1 or 0
  if #rows > 0 or #dead > 0 then
    local offsets = {}
    for i = 1, #dead, 4 do offsets[#offsets + 1] = dead[i] end
    keep(answers, argv[3], is_first, p.nonce, more, filtered, expired, offsets)
  end
  return {told(p, gid), text(p.nonce), more, filtered, expired, rows, dead}
end

-- argv: now, program, number of the call, identifier, epoch, action (`ack`, `nack`, `extend`,
-- `dead`, `undo`, `show`), seconds, then offset, count and nonce of each. Answers the indexes of
-- those that are stale; `show` does nothing but to hold the messages, and answers offset, count,
-- info and encoded message of each.
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
  local stale, rows = {}, {}
  local is_other = tonumber(argv[5]) ~= g.epoch
  for i = 8, #argv, 3 do
    local offset = argv[i]
    local count, nonce = received_of(k, offset)
    local is_leased = call('ZSCORE', k .. ':l', offset)
    local is_current = not is_other and count == tonumber(argv[i + 1])
      and nonce == tonumber(argv[i + 2]) and call('ZSCORE', k .. ':u', offset)
    if not is_current or ((action == 'extend' or action == 'undo') and not is_leased) then
      stale[#stale + 1] = (i - 8) / 3
    elseif action == 'ack' or action == 'dead' then
      local info = info_of(p, offset)
      forget(p, gid, tonumber(offset), info and info.key)
      if all_done(p, tonumber(offset)) then leave(p, tonumber(offset)) end
    elseif action == 'extend' then
      call('ZADD', k .. ':l', text(p.now + seconds), offset)
    elseif action == 'show' then
      call('ZREM', k .. ':d', offset)
      call('ZREM', k .. ':v', offset)
      call('ZADD', k .. ':l', text(p.now + seconds), offset)
      rows[#rows + 1] = offset
      rows[#rows + 1] = text(count)
      rows[#rows + 1] = call('HGET', p.base .. ':i', offset)
      rows[#rows + 1] = call('HGET', p.base .. ':d', offset)
    else
      call('ZREM', k .. ':l', offset)
      call('ZREM', k .. ':d', offset)
      call('ZREM', k .. ':v', offset)
      if action == 'undo' then call('HSET', k .. ':h', offset, text(count - 1) .. ' -1') end
      if seconds > 0 then
        call('ZADD', k .. ':d', text(p.now + seconds), offset)
      else
        call('ZADD', k .. ':v', offset, offset)
      end
    end
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

-- argv: name, the value that is to be there ('' for none), the new value ('' to delete).
-- Returns the value that is there, which is the new one where it was taken, now or before.
local function put(keys, argv)
  local found = call('HGET', keys[1] .. ':q', argv[1]) or ''
  if found == argv[3] then return {1, found} end
  if found ~= argv[2] then return {0, found} end
  if argv[3] == '' then
    call('HDEL', keys[1] .. ':q', argv[1])
  else
    call('HSET', keys[1] .. ':q', argv[1], argv[3])
  end
  return {1, argv[3]}
end

-- argv: a secret and a format, which are taken where there are none, and an older format, which is
-- replaced.
local function begin(keys, argv)
  call('HSETNX', keys[1] .. ':m', 'secret', argv[1])
  local format = call('HGET', keys[1] .. ':m', 'format')
  if not format or format == argv[3] then call('HSET', keys[1] .. ':m', 'format', argv[2]) end
  return call('HMGET', keys[1] .. ':m', 'secret', 'format')
end

local function list(keys)
  return call('HGETALL', keys[1] .. ':q')
end

-- While the library is loaded, the server offers nothing but this. What makes room or gives messages
-- away is done also where the server's memory is full.

local function register(name, callback, flag)
  redis.register_function{function_name = PREFIX .. name, callback = callback, flags = {flag}}
end

register('append', append)
register('claim_ids', claim_ids)
register('create', create)
register('put', put)
register('begin', begin)
register('add_groups', add_groups)
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
