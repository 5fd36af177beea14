// Calls a method with an empty message and writes the load report at the call's end, in hex: last_report.cjs TARGET PATH
// (gRPC's own core, which Python has, keeps it to itself: balancers inside it read it.)
const grpc = require("@grpc/grpc-js");

const [target, path] = process.argv.slice(2);
const client = new grpc.Client(target, grpc.credentials.createInsecure());
const same = (bytes) => bytes;
const call = client.makeServerStreamRequest(path, same, same, Buffer.alloc(0));
call.on("data", () => {});
call.on("error", () => {});
call.on("status", (status) => {
  const reports = status.metadata.get("endpoint-load-metrics-bin");
  process.stdout.write(JSON.stringify({ code: status.code, reports: reports.map((report) => report.toString("hex")) }));
  client.close();
});
