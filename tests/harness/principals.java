import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Scanner;

import javax.security.auth.x500.X500Principal;

import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Kafka's SslPrincipalMapper and Java's X500Principal on standard input and output, for
 * tests/slow/test_principals_java.py. Texts are UTF-8 in hexadecimal, "-" for an empty one. A line "rule RULES NAME"
 * is answered by the principal's name, or "none"; a line "name DER" by the text of the name.
 */
public class Principals {
    public static void main(String[] arguments) throws Exception {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            String answer;
            if (words[0].equals("name")) {
                answer = hex(new X500Principal(HexFormat.of().parseHex(words[1])).getName());
            } else {
                try {
                    answer = hex(SslPrincipalMapper.fromRules(text(words[1])).getName(text(words[2])));
                } catch (SslPrincipalMapper.NoMatchingRule none) {
                    answer = "none";
                }
            }
            System.out.println(answer);
        }
    }

    private static String text(String hex) {
        return hex.equals("-") ? "" : new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }

    private static String hex(String text) {
        return text.isEmpty() ? "-" : HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8));
    }
}
