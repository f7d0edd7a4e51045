"""Encoded images, decoded; and small ones encoded and decoded again."""

import base64

import numpy as np

FILES = {
    "color.jpeg": (
        "|JeWF01!$>Nk#wx0RR9200961|JwjV00RO70|EjA0|NsD0|NvF2n7WM1O*BQ2L=cX3JeSj3JVJj4iXRz4iOFu3lJ6%5fc;@6"
        "%`B*7Z?^47!ni}6#v@*LjeN>1O)^I2?YfS6b%av6ciK`6ciK`6ciK`6ciK`6ciK`6ciK`6ciK`6ciK`6ciK`6ciK`6ciK`6c"
        "iK`6cqo!01*fP3IGiQ0U`hb5di}c0sq7R9{>OW1pxs80RaI300000000010s{mE1_uZU3Jd?l0JRVR0s#X90t5pE1q1{D00D"
        "gg0s{a95d{(<F+m0sQDFxnaTGFvk)a49Lb1UWQqk}vGh%Xr2?`b$7#SKRCMPH<Dl|1VH#j*uLqtVJM@UIZQ&d$}S6EqEV`OD"
        "!XJ~0^b98lfcX)YvgM@{Khlq)al9QB`mY0~BnxdnmrKYE-sj9NGw6(UkxVgH*!^FkL$H>Xb($mz{*4NnC+Tr5k<mKk)=;`Y5"
        "^7Hid_V@Vt`v1fL9{~UZ0RaI40RaI40RR91000010s{mE1_uZU3Jd?l0JRYS0s#U91Oo&I1q1{D0Rndb0RjUN1O*{61`<J02"
        "Vrp&A~Jyp6he`qvB3!=Gg9ysVsg<679=#`CGi&+85$-hC@Cs6Ha9pqIzvQ7Mn_0VN>fx-R##YAT4Q8oW@l(=YIAgTc6WGrdV"
        "+(5g@%WSiHeewl$Dm3n3<ZQqok##r>Lo_va__cwzs&sy28W6#m2|T$;#5x)YaD4*xB0R<K*S$=jiF`^7Hid_V@Vt`v2Mh3<C"
        "iG0ucid06zfv{{X-rvv>Nx^k4jTzJ~D6?A!kU67l|v>HIb8-w*8|{on3m?fe41hw#m$AKBygG4}oeODxCL<viaGc>6T=D_)("
        "?|Je"
    ),
    "grey.jpeg": (
        "|JeWF01!$>Nk#wx0RR9200961|JwjV00RO70|EjA0|NsD0|NvF2n7WM1O*BQ2L=cX3JeSj3JVJj4iXRz4iOFu3lJ6%5fc;@6"
        "%`B*7Z?^47!ni}6#u{g3kU!T01W{F5di<h03QGV0R;g80RaI400000000000RjUA1qKHQ2?`7U!~nGr00IF60|EpC1qB2I00"
        "04f0RjU61Q7)iAu&M)6H#FYB5@QlfsvsIBSNvk6;jdgBr{@if(Z&17Z@2DB_<~*DJnEIHa9pqIzvQ7Mn_0VN>fx-R##YAT4Q"
        "8oW@l(=YIAgTc6WGrdV_?8hKGoWijtF*m6n&7nVO=bq@|{(sHv*5v$VCgx45~w!o$SH#>dFX%F@%+)z;V8+1laa<K*S$=jiF"
        "`@$&QZ_4fDp`TGCb00;pA002J#`ET}8{{WXi!oOSo3;zJfs=x3b<zJE?vX}h1{uTP)@L&E#RsR5h{{Slg*#"
    ),
    "color.png": (
        "iBL{Q4GJ0x0000DNk~Le0000D0000A2m$~A0N{*6lK=n!9Z5t%RCt_YWME(rX5c1>SQsR^85jtoQFWB50{~_z2X>qUe6auk0"
        "02ovPDHLkV1f"
    ),
    "alpha.png": (
        "iBL{Q4GJ0x0000DNk~Le0000D0000A2nGNE0B`Qp!~g&QAxT6*RCt_YWME+UFU-LGmK4mwAj!?Zz(5)v)ig9T0RTVa6Ooch?"
        ")Crx002ovPDHLkV1f"
    ),
    "grey_alpha.png": (
        "iBL{Q4GJ0x0000DNk~Le0000D0000A2m}BC0LAAVPXGV_6-h)vRCt_YWcV-q7CU5OzzK${6aWl04HIyrfl>ef002ovPDHLkV1f"
    ),
    "deep.png": (
        "iBL{Q4GJ0x0000DNk~Le0000D0000A5C8xG02&onTL1t67)eAyRCt_YWMJpJ!4HSXY$gVrV7N*F0NYv$?S$6p#{d8T07*qoM"
        "6N<$f&"
    ),
    "palette.png": (
        "iBL{Q4GJ0x0000DNk~Le0000D0000A1Oos70G+_e_W%F@7*I@9MXSiWtCpoOyl$&;l`wHlt1@}30AnyFEc91eZU6uPI7vi7R"
        "Ct_4%CQZAFbn`NQ{`u_><d*sNM{f&0|TCYoD^5Uo_C<oJe`%%8E9Z-SXqdHJ^lal0*l=g6C)|>e*gdg07*qoM6N<$f&"
    ),
    "color.bmp": (
        "LQQr600000001@s001Ze000F5000C4000317ytkO002M$006`e006`e0000000000001FN04z%rH%lf$OF2zTOaK-#03k9HE"
        "HWlHGC4vrOaKcR02Ub&AsHqt896r@OaK4?01E&U762w8068oGOaK"
    ),
    "grey.bmp": (
        "LQPf#00000001@w001Ze000F5000C4000312mk;8001BW006`e006`e000010000100000000320RRF50ssR80{{dB1ONpE1"
        "po#H1^@>K2LK2N2mlEQ2>=QT3IGcW3jhoZ3;+!c4FC=f4ge1i4*(Dl5C9Po5dabr5&#nu695zx6aW<!6#y0%762C)7XTO-7y"
        "ua=82}m@8UPy`8vq;}8~`019RMC49snO79{?aAAOImDApjyGA^;;JBLE~MBmgBPB>*NSCIBZVCjclYC;%xbDF7-eDgY}hD*!"
        "AkEC4MnEdVYqE&wktF90wwFaR+zF#s|$G5|9(GXOL+GypX<H2^j?HUKv_Hvl*|H~=|0IRH93IsiL6I{-X9JODjCJpevFJ^(*"
        "IKL9{LKmb8OK>$KRLI6WULjXiXL;yuaMF2)dMgT`gM*v7jNB~JmNdQVpN&rhsO8`tvOaM(yO#n_#P5@6&PXJI*PykU;Q2<g>"
        "QUFs^Qvg&{Q~*^~RRC62RsdI5R{&U8SO8gBSpZsES^!&HTL4^KTmW5NT>xHQUI1TTUjSfWU;trZVE|%cVgO@fV*q4iWB_GlW"
        "dLSoW&merX8>quXaH$xX#i?!Y5;3%YXEF)YyfR-Z2)d=ZUAp@Zvb#`Z~$>}aR731asYF4a{zR7bO3dAbpUpDb^v#GcK~>Jcm"
        "R2Mc>sEPdH{QSdjNcVd;ooYeE@!begJ=ee*l1hfB=DkfdGPnf&hbqg8+ntgaCzwg#d<zh5(0$hX9C(hyaO+i2#a<iU5m?ivW"
        "y_i~x;|jR200jsTC3j{uO6kN}a9kpPmCk^qyFlK_;IlmL~Ll>nBOmH?NRmjIZUm;jlXnE;xangE-dn*f}goB*AjodBMmo&cY"
        "pp8%kspa7wvp#Y+yq5z|#qX49&qyVL*r2wX;rU0j>rvRv^r~s*{sQ{{~ssO92s{pL5tN^X8tpKjBt^lvEuK=*HumG{Ku>i8N"
        "vH-KQvjDWTv;eiWwE(uZwg9)cw*a`fxB$7ixd6Jlx&XVoy8yhrya2tuy#T(xz5u_!zW~6%zyQI)!2rU-!T`g=!vMs@!~n&`#"
        "Q?^}#sJ61#{kI4$N<U7$pFgA$^gsD%K*&G%mB^J%>d5M&H&HP&j8TS&;ZfV(E!rY(g4%b(*V@e)Bx4h)d1Gk)&SSn*8teq*Z"
        "|qt*#O$w+5p?z+W_3$+yLF(-2mR+-T>d<-vHp?-~i#_;Q->|;sE30;{fF3<N)R6<pAd9<^bpC=K$#F=m6>I=>Y2L>HzEO>j3"
        "QR>;UcU?EvoX?f~!a?*Q=d@Bs1g@c{Dj@&NPm^8obp^Z@ns^#Jzv_5k<y_W=0#_yGC&`2hO*`T+a;`vCm>`~dy^{Q&;{{s8~"
        "~{{R3JCOJ$10000JCOJ$10000JCOJ$10000JCOJ$1000"
    ),
    "two.gif": (
        "M@dFFH(>?<1ptBo000006B83ACMG#KIZRAUUteDU0000004x9i000I61pojD6#xMQ5HNs10f7V!A}n}tAj5?Q0|Edc`2+y~0"
        "0sao000001^@*Bf}o(Fv$M0t#>Uy%+3f7>|Ns900000000<QT3lJC}AOHY?1PvlAcyJ)Yg$4rx06P"
    ),
}
"""Written by Pillow, in base 85."""


def about(name):
    """JPEG's pixels may differ by a few units: libraries round its transform differently."""
    return f"about_{name}" if "jpeg" in name else name


def results(tf):
    image, fetches = tf.image, {}
    for name, text in FILES.items():
        contents = tf.constant(base64.b85decode(text))
        kind = name.partition(".")[2]
        if kind == "gif":
            fetches[name] = image.decode_gif(contents)
        else:
            decode = getattr(image, f"decode_{kind}")
            fetches[about(name)] = decode(contents)
            for channels in {"jpeg": (1, 3), "png": (1, 3, 4), "bmp": ()}[kind]:
                if (name, channels) == ("palette.png", 4):
                    continue  # TensorFlow's alpha is 15 there
                fetches[about(f"{name}{channels}")] = decode(contents, channels)
        fetches[about(f"any_{name}")] = image.decode_image(contents)
        fetches[about(f"floats_{name}")] = image.decode_image(contents, dtype=tf.float32)
        fetches[f"is_{name}"] = image.is_jpeg(contents)
    deep = tf.constant(base64.b85decode(FILES["deep.png"]))
    fetches["uint16"] = image.decode_png(deep, dtype=tf.uint16)
    color = tf.constant(base64.b85decode(FILES["color.jpeg"]))
    fetches["shape"] = image.extract_jpeg_shape(color)
    pixels = np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4) * 3
    for depth in (1, 2, 3, 4):
        fetches[f"again{depth}"] = image.decode_png(image.encode_png(pixels[..., :depth]))
    fetches["again_deep"] = image.decode_png(
        image.encode_png(pixels[..., :1].astype(np.uint16) * 300), dtype=tf.uint16
    )
    with tf.Session() as session:
        return session.run(fetches)
