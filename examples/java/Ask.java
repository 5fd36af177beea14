import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import glimpse.v1.ChatServiceGrpc;
import glimpse.v1.ChunkChoice;
import glimpse.v1.ContentPart;
import glimpse.v1.CreateChatCompletionRequest;
import glimpse.v1.GenerationOptions;
import glimpse.v1.ImagePart;
import glimpse.v1.MediaSource;
import glimpse.v1.Message;
import glimpse.v1.Role;
import glimpse.v1.StreamChatCompletionResponse;
import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.protobuf.ProtoUtils;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Asks about an image over gRPC, and prints the answer as it is generated: ask [--FLAG=VALUE]... QUESTION IMAGE */
public final class Ask {
    private static final Metadata.Key<com.google.rpc.Status> DETAILS = Metadata.Key.of(
            "grpc-status-details-bin", ProtoUtils.metadataMarshaller(com.google.rpc.Status.getDefaultInstance()));

    public static void main(String[] arguments) throws InvalidProtocolBufferException, InterruptedException {
        Map<String, String> flags = new HashMap<>(Map.of(
                "target", "127.0.0.1:50051", "deadline", "60", "cancel-after", "0", "max-tokens", "64"));
        List<String> texts = new ArrayList<>();
        for (String argument : arguments) {
            String[] halves = argument.split("=", 2);
            if (halves.length == 2 && flags.containsKey(halves[0].replaceFirst("^--", ""))) {
                flags.put(halves[0].substring(2), halves[1]);
            } else {
                texts.add(argument);
            }
        }
        if (texts.size() != 2) {
            System.err.println("usage: ask [--target=HOST:PORT] [--deadline=SECONDS] [--cancel-after=PIECES]"
                    + " [--max-tokens=N] QUESTION IMAGE");
            System.exit(2);
        }
        byte[] image = null;
        try {
            image = Files.readAllBytes(Path.of(texts.get(1)));
        } catch (IOException failure) {
            System.err.println("cannot read " + texts.get(1));
            System.exit(2);
        }
        // Pings keep the connection open through proxies that close silent ones.
        ManagedChannel channel = NettyChannelBuilder.forTarget(flags.get("target")).usePlaintext()
                .keepAliveTime(10, TimeUnit.SECONDS).keepAliveTimeout(20, TimeUnit.SECONDS)
                .keepAliveWithoutCalls(true).build();
        int status = 0;
        try {
            ask(channel, flags, chatRequest(texts.get(0), image, Integer.parseInt(flags.get("max-tokens"))));
        } catch (StatusRuntimeException failure) {
            explain(flags.get("target"), failure);
            status = 1;
        }
        if (status == 0) {
            System.out.println();
        }
        channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
        System.exit(status);
    }

    private static CreateChatCompletionRequest chatRequest(String question, byte[] image, int maxTokens) {
        MediaSource source = MediaSource.newBuilder().setData(ByteString.copyFrom(image)).build();
        Message message = Message.newBuilder().setRole(Role.ROLE_USER)
                .addContent(ContentPart.newBuilder().setImage(ImagePart.newBuilder().setSource(source)))
                .addContent(ContentPart.newBuilder().setText(question)).build();
        return CreateChatCompletionRequest.newBuilder().addMessages(message)
                .setGeneration(GenerationOptions.newBuilder().setTemperature(0).setMaxCompletionTokens(maxTokens))
                .build();
    }

    private static void ask(ManagedChannel channel, Map<String, String> flags, CreateChatCompletionRequest request) {
        long deadline = (long) (1000 * Double.parseDouble(flags.get("deadline")));
        int cancelAfter = Integer.parseInt(flags.get("cancel-after"));
        Context.CancellableContext context = Context.current().withCancellation();
        context.run(() -> {
            Iterator<StreamChatCompletionResponse> stream = ChatServiceGrpc.newBlockingStub(channel)
                    .withDeadlineAfter(deadline, TimeUnit.MILLISECONDS).streamChatCompletion(request);
            int pieces = 0;
            while (stream.hasNext()) {
                for (ChunkChoice choice : stream.next().getChoicesList()) {
                    if (choice.getDelta().getContent().isEmpty()) {
                        continue;
                    }
                    System.out.print(choice.getDelta().getContent());
                    System.out.flush();
                    if (++pieces == cancelAfter) {
                        context.cancel(null);
                    }
                }
            }
        });
    }

    /** Prints the status, and the reason and the field that the server attaches to it. */
    private static void explain(String target, StatusRuntimeException failure) throws InvalidProtocolBufferException {
        if (failure.getStatus().getCode() == Status.Code.UNAVAILABLE) {
            Throwable cause = failure.getCause();
            System.err.println("no answer from " + target + ": " + failure.getStatus().getDescription()
                    + (cause == null ? "" : ", " + cause.getMessage())
                    + "\nIs the server running? `make up` starts one.");
            return;
        }
        System.err.println(failure.getStatus().getCode() + ": " + failure.getStatus().getDescription());
        Metadata trailers = failure.getTrailers();
        com.google.rpc.Status status = trailers == null ? null : trailers.get(DETAILS);
        for (Any detail : status == null ? List.<Any>of() : status.getDetailsList()) {
            if (detail.is(ErrorInfo.class)) {
                System.err.println("reason: " + detail.unpack(ErrorInfo.class).getReason());
            } else if (detail.is(BadRequest.class)) {
                for (BadRequest.FieldViolation violation : detail.unpack(BadRequest.class).getFieldViolationsList()) {
                    System.err.println("field: " + violation.getField());
                }
            }
        }
    }
}
