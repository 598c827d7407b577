-- The functions of the plugin `cluster`; Python puts the first line, which names the library.
--
-- Theory of operation. A call names what it is about by the common beginning of its keys, all of
-- which have one hash tag. Behind that of the cluster stand:
--
--   :epochs     hash: epoch of each node that is a member
--   :nodes      hash: what each member tells of itself, as JSON; '' until it is announced
--   :alive:NODE is there while the member's beats come; the server's clock ends it
--   :routes:NODE hash: the member's topic filters, and of shared ones how many members they have
--   :retained   hash: retained messages by topic
--   :sessions   hash: client, a byte 0 and a topic filter, to the origin of the session; of those that
--               the client may come back to
--   :changes    stream: what has changed of all these, in the order in which it did
--   :duties     hash: what is to be done for a member that has died, to who has to do it
--   :figures    hash: what members tell of themselves every few seconds, as JSON
--   :m          hash: epoch, the newest that was given; incarnation, the token of the first node;
--               last, the newest identifier of :changes;
--               c NODE and r NODE, the numbers of a member's newest change and retained message
--
-- behind that of a node and its epoch:
--
--   :inbox      stream: what other nodes have put there; each entry has one field, which is called as
--               its origin: node, epoch and number
--   :notes      stream: what other nodes tell it
--   :wills      hash: wills of its clients
--   :s          hash: bytes in the inbox; sealed, where nothing more may come; o NODE, epoch and
--               number of what a node has put there last
--
-- and behind that of some clients, chosen by their checksum:
--
--   :o          hash: client to owner: node, epoch, and number of the claim that has made it so
--   :last       hash: node to epoch and number of what it has posted last; x NODE, what of its newest
--               posts was refused
--   :d          sorted set: QoS 2 messages that are here and that their publisher may send again, by
--               the time in ms at which they came; the newest of them
--   :x          sorted set: origin and client of sessions that wait for their client, by the time in
--               ms at which they expire; and of those that have ended, until all nodes know it
--   :g          hash: of those that have ended, how many messages had waited and are gone
--   :s:CLIENT   hash: the session that the client may come back to: origin, which no other one has;
--               options; expiry in s, '' for none; away, the time in ms since when it has no
--               connection; messages and bytes in :q; shared, how many of them stand in :p; got, the
--               newest entry that its owner has read; dup, the newest one that may have been sent;
--               told, where the owner knows of more entries; commit and added, the newest commit and
--               what it has added; jobs, where any messages of shared subscriptions have come
--   :f:CLIENT   hash: its subscriptions
--   :q:CLIENT   stream: its messages. The one field of each is called as its head, see
--               mail_entries.py; the value is the packet, or a byte 0, the packet's size and the
--               NAME of one that several mailboxes have
--   :e:ORIGIN:CLIENT the same of a session that has ended, where it has had any of shared
--               subscriptions, until other members have these
--   :p:NAME     hash: a packet, and in how many mailboxes it is
--   :i:CLIENT   hash: entries of :q that have a packet identifier, to how they were sent
--   :n:CLIENT   set: packet identifiers of QoS 2 messages that it has sent and not released
--
-- A call may come twice: what has an effect that cannot be repeated has a number, beside the epoch of
-- its node. What comes of an epoch that has ended is refused with FENCED. A repeat, too, writes: the
-- WAIT behind it, since Redis 7.2, is for what its own connection has written.

local MOST_CHANGES = 20000  -- that are kept; who is behind them reads everything anew
local INLINE_BYTES = 4096   -- a larger retained message is looked up by who reads of it

local READ_AT_ONCE = 10     -- entries of a mailbox: they may be large
local SHARED_BYTES = 512    -- a larger packet for several mailboxes is there once
local MOST_SHARED = 5000    -- such packets of sessions that expire at once, and those of one more
local MOST_REFUSALS_BYTES = 8192  -- that are kept of each node, for posts that are repeated

local MOST_KNOWN_MS = 7 * 86400 * 1000  -- for so long a QoS 2 message is told from its repeats
local MOST_KNOWN = 100000   -- of them in one set, some 11 MB: who never releases any fills no server

local FENCED = 'PENSTOCK fenced'
local GONE = 'PENSTOCK gone'

local function call(...) return redis.call(...) end
local function refuse(what) return redis.error_reply(what) end

-- Adds an entry. Its first pairs are kind and identifier of the entry before it, node and epoch, and
-- the number; others follow. Who misses an entry sees it by the identifier.
local function note(base, kind, node, epoch, number, ...)
  local meta = base .. ':m'
  local last = call('HGET', meta, 'last') or '0-0'
  local id = call('XADD', base .. ':changes', 'MAXLEN', '~', MOST_CHANGES, '*',
    kind, last, node, epoch, '#', number, ...)
  call('HSET', meta, 'last', id)
  return id
end

local function is_member(base, node, epoch)
  return call('HGET', base .. ':epochs', node) == epoch
end

local functions = {}

-- Makes a node a member, which others do not see yet. The token tells its repeats. Its epoch is not
-- below one that nodes know of from before the server has lost its data.
function functions.join(keys, args)
  local base, node, token, milliseconds = keys[1], args[1], args[2], args[3]
  local alive = base .. ':alive:' .. node
  local epoch = call('HGET', base .. ':epochs', node)
  if epoch then
    local there = call('GET', alive)
    if there == token then
      return {'joined', epoch, call('HGET', base .. ':m', 'incarnation') or ''}
    end
    return {there and 'alive' or 'dead', epoch, call('HGET', base .. ':nodes', node) or ''}
  end
  epoch = math.max(call('HINCRBY', base .. ':m', 'epoch', 1), tonumber(args[4]))
  epoch = string.format('%d', epoch)
  call('HSET', base .. ':m', 'epoch', epoch)
  call('HDEL', base .. ':m', 'c ' .. node, 'r ' .. node)
  call('HSET', base .. ':epochs', node, epoch)
  call('HSET', base .. ':nodes', node, '')
  call('SET', alive, token, 'PX', milliseconds)
  call('HSETNX', base .. ':m', 'incarnation', token)
  return {'joined', epoch, call('HGET', base .. ':m', 'incarnation')}
end

-- Shows a member to the others.
function functions.announce(keys, args)
  local base, node, epoch, info = keys[1], args[1], args[2], args[3]
  if not is_member(base, node, epoch) then return refuse(FENCED) end
  call('HSET', base .. ':nodes', node, info)
  return note(base, 'join', node, epoch, 0, 'info', info)
end

-- Keeps a member. Answers the newest entry, the member's newest number, and who has stopped beating.
function functions.beat(keys, args)
  local base, node, epoch, milliseconds = keys[1], args[1], args[2], args[3]
  if not is_member(base, node, epoch) then return refuse(FENCED) end
  local alive = base .. ':alive:' .. node
  if call('PEXPIRE', alive, milliseconds) == 0 then call('SET', alive, '', 'PX', milliseconds) end
  local told = call('HMGET', base .. ':m', 'last', 'c ' .. node)
  local dead = {}
  local epochs = call('HGETALL', base .. ':epochs')
  for i = 1, #epochs, 2 do
    if call('EXISTS', base .. ':alive:' .. epochs[i]) == 0 then
      dead[#dead + 1] = epochs[i]
      dead[#dead + 1] = epochs[i + 1]
    end
  end
  local time = call('TIME')
  return {told[1] or '0-0', told[2] or '0', dead, time[1] * 1000 + math.floor(time[2] / 1000)}
end

-- Ends a member. `by` has to do for it what it cannot do any more, '' where that is nothing; and what
-- it had to do for others. Any member does so where that is none, as it has just left, too.
local function remove(base, node, epoch, by)
  call('HDEL', base .. ':epochs', node)
  call('HDEL', base .. ':nodes', node)
  call('HDEL', base .. ':figures', node)
  call('DEL', base .. ':alive:' .. node)
  call('UNLINK', base .. ':routes:' .. node)
  call('HDEL', base .. ':m', 'c ' .. node, 'r ' .. node)
  local key, duty = base .. ':duties', by ~= ''
  if by ~= node and call('HEXISTS', base .. ':epochs', by) == 0 then
    by = call('HKEYS', base .. ':epochs')[1] or node
  end
  local duties = call('HGETALL', key)
  for i = 1, #duties, 2 do
    if duties[i + 1] == node then call('HSET', key, duties[i], by) end
  end
  if duty then call('HSET', key, node .. ' ' .. epoch, by) end
  note(base, 'leave', node, epoch, 0, 'by', by)
end

function functions.leave(keys, args)
  if is_member(keys[1], args[1], args[2]) then remove(keys[1], unpack(args)) end
  return 1
end

-- Ends a member whose beats have stopped, unless somebody else has done so.
function functions.evict(keys, args)
  local base, node, epoch, by = keys[1], args[1], args[2], args[3]
  if not is_member(base, node, epoch) then return 0 end
  if call('EXISTS', base .. ':alive:' .. node) == 1 then return 0 end
  remove(base, node, epoch, by)
  return 1
end

function functions.done(keys, args)
  return call('HDEL', keys[1] .. ':duties', args[1] .. ' ' .. args[2])
end

-- Returns whether a number is that of a call that was carried out before.
local function is_repeat(base, kind, node, number)
  local name = kind .. ' ' .. node
  local last = call('HGET', base .. ':m', name)
  local is_over = last and tonumber(last) >= tonumber(number)
  call('HSET', base .. ':m', name, is_over and last or number)
  return is_over
end

-- Changes a subscription of a session: its origin, or that behind '-' for its end.
local function change_session(key, name, value)
  if string.sub(value, 1, 1) ~= '-' then
    call('HSET', key, name, value)
  elseif call('HGET', key, name) == string.sub(value, 2) then
    call('HDEL', key, name)
  end
end

-- Changes routes: filters, each with its number of members, 0 for none. A name behind a byte 0 is a
-- client, a byte 0 and a filter, for those of sessions that a client may come back to.
function functions.change(keys, args)
  local base, node, epoch, number = keys[1], args[1], args[2], args[3]
  if not is_member(base, node, epoch) then return refuse(FENCED) end
  if is_repeat(base, 'c', node, number) then return 0 end
  local key = base .. ':routes:' .. node
  for i = 4, #args, 2 do
    local name, value = args[i], args[i + 1]
    if string.byte(name) == 0 then
      change_session(base .. ':sessions', string.sub(name, 2), value)
    elseif value == '0' then
      call('HDEL', key, name)
    else
      call('HSET', key, name, value)
    end
  end
  note(base, 'routes', node, epoch, number, unpack(args, 4))
  return 1
end

-- Sets or clears what is retained; one that is not in the entry is to be looked up.
function functions.retain(keys, args)
  local base, node, epoch, number, topic, data = keys[1], unpack(args)
  if not is_member(base, node, epoch) then return refuse(FENCED) end
  if is_repeat(base, 'r', node, number) then return 0 end
  if data == '' then
    call('HDEL', base .. ':retained', topic)
  else
    call('HSET', base .. ':retained', topic, data)
  end
  local kind = #data > INLINE_BYTES and 'large' or 'retained'
  note(base, kind, node, epoch, number, topic, kind == 'large' and '' or data)
  return 1
end

-- The same without data.
functions.clear = functions.retain

-- Returns whether a node puts something for the first time, by what was noted of it last; nil where
-- its epoch has ended.
local function is_new(last, epoch, number)
  if not last then return true end
  local last_epoch, last_number = string.match(last, '(%d+) (%d+)')
  last_epoch, epoch = tonumber(last_epoch), tonumber(epoch)
  if last_epoch > epoch then return nil end
  return last_epoch < epoch or tonumber(last_number) < tonumber(number)
end

-- Refuses what a node of an epoch that has ended still puts; says whether none has begun since.
local function refuse_ended(key, field, ended)
  local last = call('HGET', key, field)
  local is_newest = not last or tonumber(string.match(last, '%d+')) <= ended
  if is_newest then call('HSET', key, field, string.format('%d 0', ended + 1)) end
  return is_newest
end

-- Opens the inbox of a node for its epoch.
function functions.open(keys)
  if call('HSETNX', keys[1] .. ':s', 'bytes', '0') == 1 then
    call('XADD', keys[1] .. ':notes', '*', '', '')
  end
  return 1
end

-- Puts data into an inbox; answers the bytes in it. Without data it asks for that alone.
function functions.put(keys, args)
  local base, node, epoch, number, data = keys[1], unpack(args)
  local key, own = base .. ':s', 'o ' .. node
  local told = call('HMGET', key, 'bytes', own, 'sealed')
  if not told[1] or told[3] then return refuse(GONE) end
  local bytes = tonumber(told[1])
  if data == '' then return bytes end
  local is_first = is_new(told[2], epoch, number)
  if is_first == nil then return refuse(FENCED) end
  if not is_first then
    call('HSET', key, own, told[2])
    return bytes
  end
  bytes = bytes + #data
  local origin = epoch .. ' ' .. number
  call('XADD', base .. ':inbox', '*', node .. ' ' .. origin, data)
  call('HSET', key, 'bytes', string.format('%d', bytes), own, origin)
  return bytes
end

-- Removes entries, which had so many bytes; answers the bytes that are left.
function functions.delete(keys, args)
  local base = keys[1]
  local key = base .. ':s'
  local bytes = tonumber(call('HGET', key, 'bytes') or '0')
  if call('XDEL', base .. ':inbox', unpack(args, 2)) > 0 then
    bytes = math.max(0, bytes - tonumber(args[1]))
    call('HSET', key, 'bytes', string.format('%d', bytes))
  end
  return bytes
end

-- Refuses what a node of an epoch that has ended still puts into an inbox.
function functions.fence(keys, args)
  local key = keys[1] .. ':s'
  if call('EXISTS', key) == 1 then refuse_ended(key, 'o ' .. args[1], tonumber(args[2])) end
  return 1
end

-- Lets nothing more into an inbox; what is in it can be read.
function functions.seal(keys)
  local key = keys[1] .. ':s'
  if call('EXISTS', key) == 1 then call('HSET', key, 'sealed', '1') end
  return 1
end

-- Removes all that is kept of a node's epoch.
function functions.drop(keys)
  local base = keys[1]
  return call('UNLINK', base .. ':inbox', base .. ':notes', base .. ':wills', base .. ':s')
end

-- Keeps the will of a client, or none where it is ''.
function functions.will(keys, args)
  local base, client, will = keys[1], args[1], args[2]
  if call('EXISTS', base .. ':s') == 0 then return refuse(GONE) end
  if will == '' then
    call('HDEL', base .. ':wills', client)
  else
    call('HSET', base .. ':wills', client, will)
  end
  return 1
end

local OWNER = '^(%S+) (%d+) (%d+)$'

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function text(n) return string.format('%d', n) end

-- Returns a session and its mailbox; `origin` is false where there is none.
local function session_of(base, client)
  local key, stream = base .. ':s:' .. client, base .. ':q:' .. client
  local told = call('HMGET', key, 'origin', 'away', 'got', 'commit', 'added', 'messages', 'bytes',
    'shared')
  return {base = base, client = client, key = key, stream = stream,
    origin = told[1], away = told[2], got = told[3] or '0-0', commit = told[4], added = told[5],
    messages = tonumber(told[6] or '0'), bytes = tonumber(told[7] or '0'),
    shared = tonumber(told[8] or '0')}
end

local function write_counts(box, ...)
  if box.messages <= 0 then box.messages, box.bytes = 0, 0 end
  call('HSET', box.key, 'messages', text(box.messages), 'bytes', text(math.max(0, box.bytes)),
    'shared', text(box.shared), ...)
end

-- Returns the packet that a value stands for.
local function packet_of(base, value)
  if string.byte(value) ~= 0 then return value end
  return call('HGET', base .. ':p:' .. string.match(value, ' (.*)'), 'packet') or value
end

-- Takes note that an entry is no more, by its value; returns the bytes of its packet.
local function forget_value(box, value)
  if string.byte(value) ~= 0 then return #value end
  local size, name = string.match(value, '(%d+) (.*)')
  local key = box.base .. ':p:' .. name
  box.shared = box.shared - 1
  if call('HINCRBY', key, 'mailboxes', -1) <= 0 then call('UNLINK', key) end
  return tonumber(size)
end

-- Removes entries of a mailbox, which have so many bytes. Most are its first ones, in their order:
-- then all of them go at once, as XDEL looks for each from the beginning of a hundred.
local function remove_entries(box, ids, bytes)
  local last, n, found = ids[#ids], 0, {}
  local mean = math.max(bytes / #ids, box.bytes / box.messages)
  if mean < INLINE_BYTES or box.shared > 0 then
    found = call('XRANGE', box.stream, '-', last, 'COUNT', 1)  -- before them large ones may wait
    if #ids > 1 and found[1] and found[1][1] == ids[1] then
      found = call('XRANGE', box.stream, '-', last, 'COUNT', #ids + 1)
    end
  end
  local are_first = #found == #ids
  for i = 1, #found do are_first = are_first and found[i][1] == ids[i] end
  for i = 1, box.shared > 0 and #ids or 0 do
    local entry = are_first and found[i] or call('XRANGE', box.stream, ids[i], ids[i])[1]
    if entry then forget_value(box, entry[2][2]) end
  end
  if are_first then
    local time, number = string.match(last, '(%d+)-(%d+)')
    n = call('XTRIM', box.stream, 'MINID', time .. '-' .. text(number + 1))
  else
    n = call('XDEL', box.stream, unpack(ids))
  end
  box.messages, box.bytes = box.messages - n, box.bytes - math.floor(bytes * n / #ids)
end

-- Ends a session. Its name stays until all nodes know it. Its owner counts the messages up to the one
-- that it has read last, '0-0' for none.
local function end_session(base, client, origin, read)
  local suffix, box, after = ':' .. client, session_of(base, client), '-'
  local n_gone, has_jobs = call('XLEN', box.stream), call('HEXISTS', box.key, 'jobs') == 1
  if read ~= '0-0' and (has_jobs or box.shared > 0) then
    n_gone = n_gone - #call('XRANGE', box.stream, '-', read)
  elseif read ~= '0-0' then  -- it counts them without a look at what is in them
    local time, number = string.match(read, '(%d+)-(%d+)')
    n_gone = n_gone - call('XTRIM', box.stream, 'MINID', time .. '-' .. text(number + 1))
  end
  if n_gone > 0 then call('HSET', base .. ':g', origin .. ' ' .. client, n_gone) end
  while box.shared > 0 do
    local entries = call('XRANGE', box.stream, after, '+', 'COUNT', 100)
    if #entries == 0 then break end
    for i = 1, #entries do forget_value(box, entries[i][2][2]) end
    after = '(' .. entries[#entries][1]
  end
  if has_jobs and call('EXISTS', box.stream) == 1 then
    local sent = call('HGETALL', base .. ':i' .. suffix)
    for i = 1, #sent, 2 do  -- [MQTT-4.8.2-5]
      if cjson.decode(sent[i + 1])[3] == 2 then call('XDEL', box.stream, sent[i]) end
    end
    call('RENAME', box.stream, base .. ':e:' .. origin .. suffix)
  end
  call('UNLINK', base .. ':s' .. suffix, base .. ':f' .. suffix, base .. ':q' .. suffix,
    base .. ':i' .. suffix, base .. ':n' .. suffix)
  call('ZADD', base .. ':x', text(now_ms()), origin .. ' ' .. client)
end

-- Returns the newest of some entries.
local function newest(ids)
  local found, most_time, most_number = '0-0', 0, 0
  for i = 1, #ids do
    local time, number = string.match(ids[i], '(%d+)-(%d+)')
    time, number = tonumber(time), tonumber(number)
    if time > most_time or (time == most_time and number > most_number) then
      found, most_time, most_number = ids[i], time, number
    end
  end
  return found
end

-- Notes that a session has no owner any more: only what has a packet identifier may not be dropped.
-- Where that was no end of its own, what its owner has read may have been sent.
local function leave_session(base, client, is_own)
  local key = base .. ':s:' .. client
  local told = call('HMGET', key, 'origin', 'expiry', 'away', 'got', 'dup')
  if not told[1] or told[3] then return end
  local now = now_ms()
  call('HSET', key, 'away', text(now), 'got', newest(call('HKEYS', base .. ':i:' .. client)))
  if not is_own and told[4] then call('HSET', key, 'dup', newest({told[4], told[5] or '0-0'})) end
  if told[2] and told[2] ~= '' then
    call('ZADD', base .. ':x', text(now + math.floor(told[2] * 1000)), told[1] .. ' ' .. client)
  end
end

-- Returns the origin of the session that a client comes back to, '' for none.
local function revive(base, client)
  local key = base .. ':s:' .. client
  local told = call('HMGET', key, 'origin', 'expiry', 'away')
  if not told[1] then return '' end
  leave_session(base, client, false)
  if told[3] and told[2] and told[2] ~= '' and now_ms() >= told[3] + told[2] * 1000 then
    end_session(base, client, told[1], '0-0')
    return ''
  end
  call('HDEL', key, 'away', 'told')
  call('ZREM', base .. ':x', told[1] .. ' ' .. client)
  return told[1]
end

-- Makes a node the owner of a client that has none, whose owner is the one that is displaced, or the
-- node itself by an earlier claim. Answers who is the owner then, and the origin of its session.
function functions.claim(keys, args)
  local base, client, node, epoch, number, displaced = keys[1], unpack(args)
  local key = base .. ':o'
  local now = call('HGET', key, client)
  if now and now ~= displaced then
    local own, own_epoch, own_number = string.match(now, OWNER)
    if own ~= node then return {now, ''} end
    own_epoch = tonumber(own_epoch)
    if own_epoch > tonumber(epoch) then return refuse(FENCED) end
    if own_epoch == tonumber(epoch) and tonumber(own_number) > tonumber(number) then
      return {now, ''}
    end
  end
  local owner = node .. ' ' .. epoch .. ' ' .. number
  call('HSET', key, client, owner)
  return {owner, revive(base, client)}
end

-- Ends that a node is the owner of a client, by a claim or an earlier one.
function functions.release(keys, args)
  local client, node, epoch, number = unpack(args)
  local key = keys[1] .. ':o'
  local now = call('HGET', key, client)
  if not now then return 0 end
  local own, own_epoch, own_number = string.match(now, OWNER)
  if own ~= node or own_epoch ~= epoch or tonumber(own_number) > tonumber(number) then return 0 end
  leave_session(keys[1], client, true)
  return call('HDEL', key, client)
end

-- Refuses what a node of an epoch that has ended still posts. Its publishers come to other nodes once
-- that is so for all mailboxes, and send it again there.
function functions.bar(keys, args)
  local key = keys[1] .. ':last'
  if refuse_ended(key, args[1], tonumber(args[2])) then call('HDEL', key, 'x ' .. args[1]) end
  return '0'
end

-- Ends that an epoch of a node, which has ended, is the owner of some clients; answers where to go on.
function functions.abandon(keys, args)
  local base, node, epoch, cursor = keys[1], unpack(args)
  local key = base .. ':o'
  local found = call('HSCAN', key, cursor, 'COUNT', 100)
  local rows = found[2]
  for i = 1, #rows, 2 do
    local own, own_epoch = string.match(rows[i + 1], OWNER)
    if own == node and own_epoch == epoch then
      leave_session(base, rows[i], false)
      call('HDEL', key, rows[i])
    end
  end
  return found[1]
end

-- Says whether a message has come before; where it has not, it has from now on.
local function is_here(base, token)
  if token == '' then return false end
  local key, id = base .. ':d', string.sub(token, 2)
  if string.sub(token, 1, 1) == '?' and call('ZSCORE', key, id) then return true end
  local now = now_ms()
  call('ZADD', key, text(now), id)
  call('ZREMRANGEBYSCORE', key, '-inf', text(now - MOST_KNOWN_MS))
  call('ZREMRANGEBYRANK', key, 0, -MOST_KNOWN - 1)
  return false
end

-- Forgets a message that its publisher cannot send again; a node that was evicted does not know.
function functions.unsee(keys, args)
  local base, id, node, epoch = keys[1], unpack(args)
  local last = call('HGET', base .. ':last', node)
  if is_new(last, epoch, 0) == nil then return refuse(FENCED) end
  if last then call('HSET', base .. ':last', node, last) end
  return call('ZREM', base .. ':d', id)
end

-- Returns what of a post was refused; of one that is repeated, what was refused the first time.
local function refusals(base, node, post, is_first, refused)
  local key, name = base .. ':last', 'x ' .. node
  if not is_first then
    return string.match(call('HGET', key, name) or '', post .. ':(%S*)') or ''
  end
  if refused ~= '' then
    local newest = post .. ':' .. refused .. ' ' .. (call('HGET', key, name) or '')
    call('HSET', key, name, string.sub(newest, 1, MOST_REFUSALS_BYTES))
  end
  return refused
end

-- Returns packets that follow each other; behind its first byte each has its length.
local function packets_of(data)
  local packets, at = {}, 1
  while at <= #data do
    local length, place, stop = 0, 1, at
    repeat
      stop = stop + 1
      local byte = string.byte(data, stop)
      length, place = length + byte % 128 * place, place * 128
    until byte < 128
    stop = stop + length
    packets[#packets + 1] = string.sub(data, at, stop)
    at = stop + 1
  end
  return packets
end

-- Puts a packet into a mailbox, as far as the limits go; says whether it is there.
-- Where publishers are held back they learn of it a little late: twice the limits are allowed.
local function put_packet(box, limits, qos, head, value, size)
  if not box.origin then
    box.dropped = box.dropped + 1
    return false
  end
  if qos == '0' and box.away then
    box.offline = box.offline + 1
    return false
  end
  local most_messages, most_bytes = limits.messages, limits.bytes
  if limits.mode == 'reject' and qos ~= '0' and not box.away then
    most_messages, most_bytes = 2 * most_messages, 2 * most_bytes
  end
  while limits.mode == 'drop_oldest' and box.messages > 0
    and (box.messages >= most_messages or box.bytes + size > most_bytes) do
    local oldest = call('XRANGE', box.stream, '(' .. box.got, '+', 'COUNT', 1)[1]
    if not oldest then break end
    call('XDEL', box.stream, oldest[1])
    box.messages, box.bytes = box.messages - 1, box.bytes - forget_value(box, oldest[2][2])
    box.dropped, box.has_changed = box.dropped + 1, true
  end
  if box.messages > 0 and (box.messages >= most_messages or box.bytes + size > most_bytes) then
    box.dropped = box.dropped + 1
    return false
  end
  call('XADD', box.stream, '*', head, value)
  box.messages, box.bytes, box.has_changed = box.messages + 1, box.bytes + size, true
  return true
end

-- Puts messages into mailboxes, once. Behind the limits stand, for each run of them: its head, its
-- packets, their QoS, what tells its repeats ('' for nothing; '?' before it where it may be one), for
-- how many clients it is, and these. In place of the fourth, '.' says that another client can have
-- them: they are refused where this one has no session; with '!' also where it is away. Answers which
-- runs were refused, and for each client the messages and bytes in its mailbox (-1 and 0 where it has
-- none), how many were dropped, how many of QoS 0 as it is away, whether it is away, and the owner if
-- that is to be told.
function functions.post(keys, args)
  local base, node, epoch, number = keys[1], unpack(args, 1, 3)
  local limits = {messages = tonumber(args[4]), bytes = tonumber(args[5]), mode = args[6]}
  local last = call('HGET', base .. ':last', node)
  local is_first = is_new(last, epoch, number)
  if is_first == nil then return refuse(FENCED) end
  local origin, n_shared = epoch .. ' ' .. number, 0
  call('HSET', base .. ':last', node, is_first and origin or last)
  local boxes, asked, refused = {}, {}, {}
  local at, run = 7, 0
  while at <= #args do
    local head, data, qos, token, n = unpack(args, at, at + 4)
    local first, stop = at + 5, at + 4 + tonumber(n)
    local has_others = token == '.' or token == '!'
    run = run + 1
    for i = first, stop do
      if not boxes[args[i]] then
        local box = session_of(base, args[i])
        box.dropped, box.offline, boxes[args[i]], asked[#asked + 1] = 0, 0, box, box
      end
    end
    local box = boxes[args[first]]
    if not is_first or data == '' then  -- it is here, or a question
    elseif has_others and (not box.origin or token == '!' and box.away) then
      refused[#refused + 1] = run
    elseif has_others or not is_here(base, token) then
      box.has_jobs = box.has_jobs or has_others
      local packets = packets_of(data)
      for i = 1, #packets do
        local packet, name = packets[i], nil
        local value, size, n_there = packet, #packet, 0
        if stop > first and size > SHARED_BYTES then
          n_shared = n_shared + 1
          name = node .. ' ' .. origin .. ' ' .. n_shared
          value = '\0' .. size .. ' ' .. name
        end
        for j = first, stop do
          box = boxes[args[j]]
          if put_packet(box, limits, qos, head, value, size) then
            n_there = n_there + 1
            if name then box.shared = box.shared + 1 end
          end
        end
        if name and n_there > 0 then
          call('HSET', base .. ':p:' .. name, 'packet', packet, 'mailboxes', n_there)
        end
      end
    end
    at = stop + 1
  end
  local told = {refusals(base, node, epoch .. '/' .. number, is_first, table.concat(refused, ','))}
  for i = 1, #asked do
    local box = asked[i]
    if box.origin then
      if box.has_jobs then write_counts(box, 'jobs', '1')
      elseif box.has_changed then write_counts(box) end
      local owner = ''
      if not box.away and box.messages > 0 and call('HSETNX', box.key, 'told', '1') == 1 then
        owner = call('HGET', base .. ':o', box.client) or ''
      end
      local away = box.away and 1 or 0
      told[#told + 1] = {box.client, box.messages, box.bytes, box.dropped, box.offline, away, owner}
    else
      told[#told + 1] = {box.client, -1, 0, box.dropped, 0, 1, ''}
    end
  end
  return told
end

local function is_owner(base, client, owner)
  return call('HGET', base .. ':o', client) == owner
end

-- Returns some entries of a mailbox, with their packets.
local function entries_of(box, after, stop, n)
  local entries = call('XRANGE', box.stream, after, stop, 'COUNT', n)
  if box.shared > 0 then
    for i = 1, #entries do entries[i][2][2] = packet_of(box.base, entries[i][2][2]) end
  end
  return entries
end

-- Answers with all of a session, but of its messages only those with a packet identifier.
function functions.load(keys, args)
  local base, client, owner = keys[1], unpack(args)
  if not is_owner(base, client, owner) then return refuse(FENCED) end
  local suffix, box, entries = ':' .. client, session_of(base, client), {}
  local sent = call('HGETALL', base .. ':i' .. suffix)
  for i = 1, #sent, 2 do entries[#entries + 1] = entries_of(box, sent[i], sent[i], 1)[1] end
  return {call('HGETALL', box.key), call('HGETALL', base .. ':f' .. suffix), sent,
    call('SMEMBERS', base .. ':n' .. suffix), entries}
end

-- Returns whether there is more in a mailbox, and entries behind one: so many at most, and after the
-- first of them no more bytes than that; and how many bytes these have.
local function fetch(base, client, after, most, most_bytes)
  local box, entries, bytes, has_more = session_of(base, client), {}, 0, false
  repeat
    local some = entries_of(box, '(' .. after, '+', READ_AT_ONCE)
    for i = 1, #some do
      local size = #some[i][2][2]
      has_more = #entries == most or (#entries > 0 and bytes + size > most_bytes)
      if has_more then break end
      entries[#entries + 1], after, bytes = some[i], some[i][1], bytes + size
    end
  until has_more or #some < READ_AT_ONCE
  if box.origin then
    if not has_more then call('HDEL', box.key, 'told') end
    if #entries > 0 then call('HSET', box.key, 'got', after) end
  end
  return {has_more and 1 or 0, entries}, bytes
end

-- Answers with the time in ms, and for each client, after whose name stand its owner and an entry, as
-- `fetch` does, or that its caller has it no more. The bytes are for all of them together.
function functions.fetch(keys, args)
  local base, answers = keys[1], {text(now_ms())}
  local most, left, bytes = tonumber(args[1]), tonumber(args[2]), nil
  for i = 3, #args, 3 do
    local client, owner, after = unpack(args, i, i + 2)
    local answer = FENCED
    if is_owner(base, client, owner) then
      answer, bytes = fetch(base, client, after, most, left)
      left = left - bytes
    end
    answers[#answers + 1] = answer
  end
  return answers
end

local function split(words)
  local found = {}
  for word in string.gmatch(words, '%S+') do found[#found + 1] = word end
  return found
end

-- Changes a session as `commit` has it, by some of the words that it was given.
local function commit(base, words, first, stop)
  local client, owner, number, origin = unpack(words, first, first + 3)
  if not is_owner(base, client, owner) then return FENCED end
  local suffix, head = ':' .. client, ''
  local subscriptions, incoming = base .. ':f' .. suffix, base .. ':n' .. suffix
  local sent = base .. ':i' .. suffix
  local box = session_of(base, client)
  local stamp = owner .. ' ' .. number
  if box.origin and box.origin ~= origin then
    end_session(base, client, box.origin, '0-0')
    box = session_of(base, client)
  elseif not box.origin and words[first + 5] ~= 's' then
    return FENCED  -- a failover has lost it
  end
  if box.commit == stamp then
    call('HSET', box.key, 'commit', stamp)
    return box.added
  end
  -- Or a message that is to be sent: it is another entry once it is sent again. And a client that
  -- has it would take the next one with its packet identifier for it.
  for i = first + 5, stop, 3 do
    local id = words[i + 1]
    if words[i] == 'i' and call('HEXISTS', sent, id) == 0
      and #call('XRANGE', box.stream, id, id) == 0 then return FENCED end
  end
  local added = {}
  for i = first + 5, stop, 3 do
    local what, one, other = words[i], words[i + 1], words[i + 2]
    if what == 's' then call('HSET', box.key, one, other)
    elseif what == 'f' then call('HSET', subscriptions, one, other)
    elseif what == 'F' then call('HDEL', subscriptions, one)
    elseif what == 'n' then call('SADD', incoming, one)
    elseif what == 'N' then call('SREM', incoming, one)
    elseif what == 'i' then call('HSET', sent, one, other)
    elseif what == 'h' then head = one
    elseif what == 'a' then
      local id = call('XADD', box.stream, '*', head, one)
      if other ~= '' then call('HSET', sent, id, other) end
      box.messages, box.bytes = box.messages + 1, box.bytes + #one
      added[#added + 1] = id
    elseif what == 'I' then call('HDEL', sent, unpack(split(one)))
    elseif what == 'd' then remove_entries(box, split(one), other)
    end
  end
  added = table.concat(added, ' ')
  write_counts(box, 'origin', origin, 'commit', stamp, 'added', added)
  return added
end

-- Changes sessions, each once; answers with the entries that each has got, or that its caller has it
-- no more. For each stand there: client, owner, the number of the commit, origin of the session, how
-- many words follow, and these. They are changes: a letter, and two words. Those of a new session
-- begin with 's'; 'h' is the head for each 'a' behind it.
function functions.commit(keys, args)
  local answers, at = {}, 1
  while at <= #args do
    local stop = at + 4 + tonumber(args[at + 4])
    answers[#answers + 1] = commit(keys[1], args, at, stop)
    at = stop + 1
  end
  return answers
end

-- Removes messages of a session, of so many bytes.
function functions.erase(keys, args)
  local base, client, owner, ids, bytes = keys[1], unpack(args)
  if not is_owner(base, client, owner) then return refuse(FENCED) end
  local box = session_of(base, client)
  if not box.origin then return 0 end
  remove_entries(box, split(ids), bytes)
  write_counts(box)
  return 1
end

-- Ends a session whose client has ended it.
function functions.finish(keys, args)
  local base, client, owner, origin, read = keys[1], unpack(args)
  if is_owner(base, client, owner) and call('HGET', base .. ':s:' .. client, 'origin') == origin then
    end_session(base, client, origin, read)
  end
  return 1
end

-- Ends sessions whose time has come; answers with origin and client of each that has ended. It ends
-- fewer where many of their messages are in other mailboxes, too: each of them is looked at.
function functions.expire(keys, args)
  local base = keys[1]
  local due = call('ZRANGE', base .. ':x', '-inf', text(now_ms()), 'BYSCORE', 'LIMIT', 0, args[1])
  local ended, n_shared = {}, 0
  for i = 1, #due do
    local origin, client = string.match(due[i], '^(%S+) (.*)$')
    local told = call('HMGET', base .. ':s:' .. client, 'origin', 'shared')
    if told[1] ~= origin then
      ended[#ended + 1] = due[i]
    elseif n_shared < MOST_SHARED and call('HEXISTS', base .. ':o', client) == 0 then
      n_shared = n_shared + (told[2] or 0)
      end_session(base, client, origin, '0-0')
      ended[#ended + 1] = due[i]
    end
  end
  return ended
end

-- Forgets sessions that have ended, of which all nodes know: origin and client of each. Answers how
-- many messages are gone with them.
function functions.forget(keys, args)
  local key, n_gone = keys[1] .. ':g', 0
  for i = 1, #args do
    n_gone = n_gone + (call('HGET', key, args[i]) or 0)
    call('UNLINK', keys[1] .. ':e:' .. string.gsub(args[i], ' ', ':', 1))
  end
  call('HDEL', key, unpack(args))
  call('ZREM', keys[1] .. ':x', unpack(args))
  return n_gone
end

-- What frees memory, or ends something, is done where the server's memory is full, too. So is all
-- by which a mailbox is emptied: what a commit adds is little, and what it removes may wait for it.
local FREEING = {
  'beat', 'leave', 'evict', 'done', 'clear', 'delete', 'fence', 'seal', 'drop', 'claim', 'release',
  'bar', 'abandon', 'unsee', 'load', 'fetch', 'commit', 'erase', 'finish', 'expire', 'forget'
}
local STORING = {'join', 'announce', 'change', 'retain', 'open', 'put', 'will', 'post'}

local function register(names, flags)
  for i = 1, #names do
    local name = names[i]
    redis.register_function{
      function_name = PREFIX .. name, callback = functions[name], flags = flags
    }
  end
end

register(FREEING, {'allow-oom'})
register(STORING, {})
